"""What came of a message."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from celery_sagas.core.sending import Sending


class Kind(StrEnum):
    """What came of a message; all but ``DROPPED`` and ``DUPLICATE`` are outcomes of the journal."""

    STARTED = "started"
    HANDLED = "handled"
    COMPLETED = "completed"
    IGNORED = "ignored"
    MISSING = "missing"  #: the ``if_missing`` function ran
    DROPPED = "dropped"  #: a timeout that the instance no longer has, or whose instance is gone
    FAILED = "failed"  #: this very message failed for good before, and is a dead letter, or was one
    DUPLICATE = "duplicate"  #: this very message was handled before


class Outcome(NamedTuple):
    """What came of one message."""

    kind: Kind
    saga: str
    step: str
    message_id: str
    key: str = ""
    instance_id: str = ""
    version: int = 0
    is_new: bool = False  #: whether this message created the instance, also if it completed at once
    reason: str = ""  #: why it was ignored or dropped: "exists", "missing", "completed" or "withdrawn"
    result: Any = None


@dataclass(frozen=True, slots=True)
class Missing:
    """What an ``if_missing`` function gets first: what was not found, and a way to send."""

    saga: str  #: the stored name
    property: str  #: what the message was correlated by
    value: str  #: the canonical text
    completed: bool  #: whether the journal remembers that it completed
    sending: Sending

    def send(self, signature: object) -> str:
        """Send a message with the commit of this one; return its id."""
        return self.sending.send(signature)
