"""The open requests and gathers of an instance, as its steps see them."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from celery_sagas.clock import utc_time
from celery_sagas.core.requests.requests import Request


class RequestView(NamedTuple):
    """A request that has no outcome yet."""

    id: str  #: what ``send`` or ``gather`` has returned
    task: str  #: its name; of a chain that of its last task, empty for a ``gather``
    deadline: datetime | None  #: aware, UTC; ``None`` without ``within=``
    members: int = 0  #: of a ``gather``


class OpenRequests(Mapping[str, RequestView]):
    """The requests that have no outcome yet, by their ids; without those whose deadline has passed.

    There may be up to a thousand, and few steps read them: they are made when they are read for the first time.
    """

    __slots__ = ("_requests", "_views")

    def __init__(self, requests: Mapping[str, Request]) -> None:
        """Take requests that do not change any more while a step runs."""
        self._requests = requests
        self._views: dict[str, RequestView] | None = None

    def __getitem__(self, id: str) -> RequestView:
        return self._read()[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return repr(self._read())

    def _read(self) -> dict[str, RequestView]:
        if self._views is None:
            self._views = {each.first: _view(each) for each in self._requests.values() if not each.has_timed_out}
        return self._views


def _view(request: Request) -> RequestView:
    task, deadline = "" if request.members else request.task, utc_time(request.at) if request.at else None
    return RequestView(request.first, task, deadline, request.members)


class MemberOutcomes(NamedTuple):
    """The members of a gather that have an outcome, by their positions, in order."""

    answered: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


class GatherView(NamedTuple):
    """A gather that has not ended, as it was when it was looked at. Members are known by their positions."""

    id: str  #: what ``gather`` has returned
    members: int  #: how many there are
    at_least: int  #: how many must answer
    answered: tuple[int, ...]  #: the members that have answered, in order
    failed: tuple[int, ...]  #: the members that have failed, in order
    deadline: datetime | None  #: aware, UTC; ``None`` without ``within=``

    @property
    def silent(self) -> list[int]:
        """The members from which nothing has come yet."""
        known = {*self.answered, *self.failed}
        return [position for position in range(self.members) if position not in known]


class OpenGathers(Mapping[str, GatherView]):
    """The gathers that have not ended, by their ids.

    What has come of their members is kept beside the instance: it is read when a gather is looked at for the first time.
    """

    __slots__ = ("_read", "_requests", "_views")

    def __init__(self, requests: Mapping[str, Request], read: Callable[[Request], MemberOutcomes]) -> None:
        """Take the requests as they are when a step begins, and what reads the outcomes of their members."""
        self._requests = {id: each for id, each in requests.items() if each.members and not each.has_timed_out}
        self._read = read
        self._views: dict[str, GatherView] = {}

    def __getitem__(self, id: str) -> GatherView:
        if id not in self._views:
            self._views[id] = self._view(self._requests[id])
        return self._views[id]

    def __contains__(self, id: object) -> bool:
        return id in self._requests

    def __iter__(self) -> Iterator[str]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __repr__(self) -> str:
        return f"<gathers {', '.join(self)}>"  # without what has come of them, which would have to be read

    def _view(self, request: Request) -> GatherView:
        deadline = utc_time(request.at) if request.at else None
        return GatherView(request.id, request.members, request.at_least, *self._read(request), deadline)
