"""The outcomes of messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple

from pydantic_core import from_json
from typing_extensions import TypeVar

from celery_sagas.clock import utc_time
from celery_sagas.core.sending import Sending
from celery_sagas.stores.records import Entry

StateT_co = TypeVar("StateT_co", covariant=True, default=Any)


class Kind(StrEnum):
    """The kind of a message's outcome; all but ``DROPPED`` and ``DUPLICATE`` are recorded in the journal."""

    STARTED = "started"
    HANDLED = "handled"
    COMPLETED = "completed"
    IGNORED = "ignored"
    MISSING = "missing"  #: the ``if_missing`` function ran
    #: It waits until the instance is in the right status for it, or is resumed, or until there is one.
    DEFERRED = "deferred"
    RETRIED = "retried"  #: a request has failed and was sent again, so that no step was notified
    UNDONE = "undone"  #: the outcome of a request that is undone, or of an undo: no step has handled it
    DROPPED = "dropped"  #: a timeout that the instance no longer has, or whose instance is gone; or a late answer without a value
    OPERATED = "operated"  #: an operator has acted on the instance
    FAILED = "failed"  #: this very message failed permanently before, and is or was a dead letter
    DUPLICATE = "duplicate"  #: this very message was handled before


class Outcome(NamedTuple, Generic[StateT_co]):
    """The outcome of one message. Signals carry it, and ``Saga.outcome`` returns that of the message that ended an instance."""

    kind: Kind
    saga: str  #: the stored name
    step: str
    message_id: str
    key: str = ""  #: the canonical text of the correlation key; empty if the message named none
    instance_id: str = ""  #: empty without an instance
    version: int = 0  #: of the instance after the message; 0 without an instance
    is_new: bool = False  #: whether this message created the instance, also if it completed at once
    #: Why it was ignored, deferred or dropped: "exists", "missing", "status", "paused", "completed", "cancelled" or "overtaken".
    reason: str = ""
    result: Any = None  #: returned by the handler; the journal does not keep it
    at: datetime | None = None  #: when it was committed, by the store's clock: aware, UTC; ``None`` in a signal
    compensated: bool = False  #: whether everything that ``compensate`` had to undo is undone with it
    #: The final state of the instance, a read-only copy: where ``Saga.outcome`` and ``wait`` return it, while the class keyword
    #: ``keep`` says so. Elsewhere ``None``.
    state: StateT_co | None = None


def read_entry(entry: Entry) -> Outcome:
    """Return the outcome that an entry of the journal records; without a reason, if its details cannot be read."""
    try:
        reason = str(from_json(entry.detail).get("reason", ""))
    except ValueError:  # it is nested too deeply
        reason = ""
    at = utc_time(entry.at)
    key, instance_id, version = entry.key, entry.instance_id, entry.version
    return Outcome(
        Kind(entry.outcome), entry.saga, entry.step, entry.message_id, key, instance_id, version, version == 1, reason, at=at
    )


@dataclass(frozen=True, slots=True)
class Missing:
    """The first argument of an ``if_missing`` function: the missing instance, the message, and a way to send."""

    saga: str  #: the stored name
    step: str  #: the name of the step
    property: str  #: the property by which the message was correlated
    value: str  #: the canonical text
    completed: bool  #: whether the journal records that it completed
    arguments: Mapping[str, Any] = field(repr=False)  #: of the message, by name, as its step would receive them
    sending: Sending

    def send(self, signature: object) -> str:
        """Send a message with the commit of this one; return its id."""
        return self.sending.send(signature)
