"""Deferred messages: those that have come too early wait with the instance, until it is in the right status for them."""

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from celery_sagas.core.delays import seconds_of
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

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {name: value for name, value in self._asdict().items() if value}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return the message that JSON values describe.

        Raises:
            TypeError: They do not describe one.
        """
        return cls(**{name: part for name, part in value.items() if name in cls._fields})

    @property
    def view(self) -> DeferredMessage:
        """What users see of it."""
        return DeferredMessage(self.id, self.step, datetime.fromtimestamp(self.since / 1000, UTC))

    def is_of(self, steps: tuple[str, ...], id: str) -> bool:
        """Return whether it is the message of an id to a step, known by its names."""
        return self.id == id and self.step in steps


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
