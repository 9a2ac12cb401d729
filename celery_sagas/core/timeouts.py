"""Timeouts: the messages, and the series of messages, that an instance has sent to itself for later."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from celery_sagas import clock
from celery_sagas.clock import utc_time
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.series import Series, series_from_json

#: In the place of a time: that of the commit that has written the pending map.
WITH_MAP = -1
_NEVER: Mapping[str, datetime] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Timeout:
    """A message that the instance has sent to itself for later, or a series of them."""

    id: str  #: of the timeout: the message id under which it is sent, or the first of its series
    row: str  #: of the outbox
    step: str
    at: int  #: when it is due, or the first of its series; milliseconds since the epoch
    every: Series | None = None  #: when the others of its series are due
    #: Of a series: when its newest occurrence was handled, by the store's clock, in milliseconds since the epoch; 0: none was.
    handled_at: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)  #: what newer code has stored with it

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        value = {**self.more, "id": self.id, "row": self.row, "step": self.step, "at": self.at}
        if self.every:
            value |= {"every": self.every.to_json(), "handled_at": self.handled_at}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any], written_at: int = 0) -> Self:
        """Return the timeout that JSON values describe, and that was committed at a time.

        Raises:
            KeyError: They do not describe one.
            ValueError: They describe a series that this code cannot read.
        """
        id, row, step, at = (value.pop(name) for name in ("id", "row", "step", "at"))
        every = series_from_json(value.pop("every")) if "every" in value else None
        handled_at = value.pop("handled_at", 0)
        return cls(id, row, step, at, every, written_at if handled_at == WITH_MAP else handled_at, value)

    def due_after(self, now: int) -> int:
        """Return when it is due; of a series, when it is due for the first time after now. Milliseconds since the epoch."""
        return self.every.following(max(now, self.at - 1)) if self.every else self.at


class NewTimeout(NamedTuple):
    """A timeout that a step adds."""

    message: SerializedMessage
    at: int  #: when it is due, or the first of its series; milliseconds since the epoch
    every: Series | None = None  #: when the others of its series are due


def due_times(timeouts: Mapping[str, Timeout]) -> Mapping[str, datetime]:
    """Return when timeouts are due, and series next, by their names; aware, UTC."""
    if not timeouts:
        return _NEVER
    now = int(clock.time_s() * 1000)
    return MappingProxyType({name: utc_time(timeout.due_after(now)) for name, timeout in timeouts.items()})
