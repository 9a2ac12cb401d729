"""Deferred messages: those that have come too early wait with the instance, until it is in the right status for them."""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from celery_sagas.clock import LAST_MS, utc_time
from celery_sagas.core.delays import seconds_of
from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.errors import DefinitionError

#: Ends the name of the step that receives the message that a deferred one has waited for long enough.
DEFERRED: Final = "(deferred)"
#: The most messages that wait with an instance.
MOST: Final = 100
#: The longest time that a message may wait, in seconds: ten years.
_LONGEST_S: Final = 10 * 365 * 86_400.0


class DeferredMessage(NamedTuple):
    """A message that waits with the instance."""

    id: str
    step: str  #: the step's name, as the message has it
    since: datetime  #: when it was deferred first: aware, UTC


class Deferred(NamedTuple):
    """A message that waits with the instance, as stored."""

    id: str  #: under which the journal will know it
    step: str  #: as the message names it
    since: int  #: when it was deferred first; milliseconds since the epoch
    message_id: str  #: under which it is published again: its task's id
    payload: str  #: the message, as JSON text
    awaited: str = ""  #: of a timeout its id, of an outcome the id of its request; empty: it is neither
    came: str = ""  #: the kind of the outcome
    wake: str = ""  #: the id of the message that ends the waiting, if it has an end
    row: str = ""  #: of the outbox: that message
    more: Mapping[str, Any] = MappingProxyType({})  #: what newer code has stored with it

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**self.more, **{name: value for name, value in self._asdict().items() if value and name in _STORED}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the message that JSON values describe.

        Raises:
            TypeError: They do not describe one.
        """
        stored = {name: part for name, part in value.items() if name in _STORED}
        if wrong := [name for name, part in stored.items() if type(part) is not _STORED[name]]:
            raise TypeError(f"{', '.join(wrong)} of a deferred message")
        if not 0 < stored.get("since", 1) <= LAST_MS:
            raise TypeError("since of a deferred message is no time")
        return cls(**stored, more={name: part for name, part in value.items() if name not in _STORED})

    @property
    def view(self) -> DeferredMessage:
        """What users see of it."""
        return DeferredMessage(self.id, self.step, utc_time(self.since))

    @property
    def is_outcome(self) -> bool:
        """Whether it is the outcome of a request, and no interim answer."""
        return self.came not in ("", ReplyKind.PROGRESS)

    def is_of(self, steps: tuple[str, ...], id: str) -> bool:
        """Return whether it is the message of an id to a step, known by its names."""
        return self.id == id and self.step in steps


#: The parts under which it is stored, and their types.
_STORED: Final = {name: int if name == "since" else str for name in Deferred._fields if name != "more"}


def checked_defer_for(subject: str, defer_for: Any, *, may_be_missing: bool, is_deferred: bool) -> float:
    """Return how long a step's messages may be deferred, in seconds; 0: indefinitely.

    Args:
        subject: The step, for errors.
        defer_for: A ``timedelta`` or seconds; ``None``: it was not given.
        may_be_missing: Whether they are deferred when there is no instance.
        is_deferred: Whether they are deferred when the instance is in another status.

    Raises:
        DefinitionError: It is wrong, or missing.
    """
    if defer_for is None:
        if may_be_missing:
            raise DefinitionError(subject, 'it has if_missing="defer" without defer_for=', "Say how long a message may wait")
        return 0.0
    if not (may_be_missing or is_deferred):
        raise DefinitionError(subject, "it has defer_for= and defers nothing", 'Declare if_missing="defer", or if_not="defer"')
    try:
        seconds = seconds_of("defer_for", defer_for)
    except TypeError as exc:
        raise DefinitionError(subject, str(exc)) from exc
    if not 0 < seconds <= _LONGEST_S:
        raise DefinitionError(subject, f"defer_for={defer_for!r} is not between 0 and ten years")
    return seconds
