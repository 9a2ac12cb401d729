"""Calls of scripts and commands, and the trips in which they are sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import ResponseError

from celery_sagas.stores.redis.connection.connections import Server, pack
from celery_sagas.stores.redis.connection.scripts import Script

#: The most calls of one trip, and the most bytes unless one call has more: the server keeps the replies until all is sent.
_CALLS_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1_000_000
ASKING: Final = pack(["ASKING"])


@dataclass(slots=True, eq=False)
class Call:
    """A script or a command, its reply, and what is known about it while it is being sent."""

    name: str
    request: bytes
    keys: Sequence[str] = ()
    script: Script | None = None  #: to be loaded, should the server not know it
    waits: bool = False  #: for replicas
    server: Server | None = None  #: the only one to ask, else the one that has the keys
    reply: Any = None
    error: Exception | None = None  #: in the place of the reply
    asked: Server | None = None  #: the one that was asked last
    is_unknown: bool = False  #: the server does not know the script
    is_asking: bool = False  #: the server does not own the slot yet
    redirects: int = 0


class Trip:
    """Calls that are sent to one server together: a pipeline, since each script is atomic by itself.

    Args:
        calls: At least one.
        after: The commands that follow them.
    """

    def __init__(self, calls: Sequence[Call], after: Sequence[bytes]) -> None:
        self._calls = calls
        unknown = {call.script.sha: call.script.source for call in calls if call.is_unknown and call.script}
        self._loads = len(unknown)
        self.requests = [pack(["SCRIPT", "LOAD", source]) for source in unknown.values()]
        for call in calls:
            if call.is_asking:
                self.requests.append(ASKING)
            self.requests.append(call.request)
        self.requests += after

    @property
    def name(self) -> str:
        """The names of the scripts and commands, each once."""
        return ", ".join(dict.fromkeys(call.name for call in self._calls))

    def read(self, replies: Sequence[Any]) -> list[Any]:
        """Set the reply or the error of each call; return the replies to the commands that follow them."""
        rest = iter(replies)
        refused = _first_error([next(rest) for _ in range(self._loads)]) if self._loads else None
        for call in self._calls:
            if call.is_asking:
                next(rest)
            reply = next(rest)
            call.reply, call.error = (None, reply) if isinstance(reply, ResponseError) else (reply, None)
            if refused and call.is_unknown:
                call.error = refused
        return list(rest)


def add_error(calls: Sequence[Call], replies: Sequence[Any]) -> None:
    """Set the first error among replies that concern all of these calls as the error of those that have none."""
    error = _first_error(replies)
    for call in calls:
        call.error = call.error or error


def in_trips(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    """Yield calls in parts of a bounded number of calls and bytes, or of one call."""
    first, size = 0, 0
    for position, call in enumerate(calls):
        size += len(call.request)
        if position > first and (size > _BYTES_AT_ONCE or position - first == _CALLS_AT_ONCE):
            yield calls[first:position]
            first, size = position, len(call.request)
    yield calls[first:]


def _first_error(replies: Sequence[Any]) -> ResponseError | None:
    return next((reply for reply in replies if isinstance(reply, ResponseError)), None)
