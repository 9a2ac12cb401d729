"""Where a worker's process ends in a test, and the backend that its end leaves behind."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, TypeVar, get_args

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.items import Added, Addition, Rules, Snapshot
from celery_sagas.stores.memory.aggregates import MemoryAggregateStore
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.sagas import MemorySagaStore
from celery_sagas.stores.memory.state import Clock, MemoryState
from celery_sagas.stores.records import Change, Effects, Found, Handling, Lookup, NewRecord, Outgoing, Record
from celery_sagas.stores.shared import SharedTransaction, SharedTransactions

T = TypeVar("T")

#: Where the process ends: before a step looks its instance up, or a plain task begins; after the handler, or the plain task, and
#: before the commit, or the answer; after the commit, before what it sends is published; after that; when everything is done,
#: except for the acknowledgement.
CrashPoint = Literal["before_find", "after_handler", "after_commit", "after_publishing", "before_acknowledgement"]
POINTS: tuple[CrashPoint, ...] = get_args(CrashPoint)


class ProcessKilled(SystemExit):
    """Raised where the process ends: nothing after it has an effect, not even in a ``finally``."""


def check_point(point: CrashPoint | None) -> None:
    """Refuse a point at which no process ends.

    Raises:
        ValueError: It is none.
    """
    if point is not None and point not in POINTS:
        raise ValueError(f"a process can be killed at {', '.join(POINTS)}, not {point!r}")


class Crash:
    """The end of a worker's process, if one is planned for the message that it handles."""

    def __init__(self) -> None:
        self._planned: CrashPoint | None = None
        self._thread = 0  #: that handles the message
        self.happened: CrashPoint | None = None

    @property
    def is_planned(self) -> bool:
        """Whether the process that handles the next message ends."""
        return self._planned is not None

    def plan(self, point: CrashPoint | None) -> None:
        """Have the process that handles the next message end at a point, or not."""
        self._planned, self.happened, self._thread = point, None, threading.get_ident()

    def reach(self, point: CrashPoint) -> None:
        """End the process if it was to end here, or before, at a point that its message has not reached; or has ended.

        Raises:
            ProcessKilled: It has ended.
        """
        is_last = self._planned is not None and point == POINTS[-1]
        if (self._planned == point or is_last) and threading.get_ident() == self._thread:  # not where it waits for another
            self.happened = point
        self.check()

    def check(self) -> None:
        """Refuse to do anything for a process that has ended.

        Raises:
            ProcessKilled: It has ended.
        """
        if self.happened:
            raise ProcessKilled(self.happened)


class WatchedBackend(MemoryBackend):
    """The backend in memory, which forgets nothing; a process may end before and after each commit."""

    journal_retention_s = 1000 * 366 * 86_400.0

    def __init__(self, clock: Clock, crash: Crash) -> None:
        super().__init__("memory://", prefix="", clock=clock)
        self._state.lock = _Lock(crash)
        self.sagas = _WatchedSagas(self._state, clock, crash)
        self.aggregates = _WatchedAggregates(self._state, clock, crash)
        self.shared: SharedTransactions = _NoTransactions()


class _NoTransactions(SharedTransactions):
    """Says what to do about steps and code that need a database."""

    def _refuse(self) -> NoReturn:
        problem = "a SagaHarness keeps everything in memory, and shares no transaction of a database"
        raise ConfigurationError(problem, "Call step.handler(state, session, …), or test in eager mode on sqlite:///file")

    def add(self, using: object, rows: Sequence[Outgoing], then: Callable[[str], object]) -> None:
        self._refuse()

    def check(self, kind: object) -> None:
        """Accept it: other steps can be tested."""

    def open(self, kind: object) -> SharedTransaction:
        self._refuse()


class _Lock:
    """The lock of a backend, which a process that has ended cannot take."""

    def __init__(self, crash: Crash) -> None:
        self._crash = crash
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._crash.check()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Watched:
    """A store around whose commits a process may end."""

    def __init__(self, state: MemoryState, clock: Clock, crash: Crash) -> None:
        super().__init__(state, clock)  # type: ignore[call-arg]
        self._crash = crash

    def _commit_watched(self, commit: Callable[..., T], *arguments: Any, **options: Any) -> T:
        self._crash.reach("after_handler")
        result = commit(*arguments, **options)
        self._crash.reach("after_commit")
        return result


class _WatchedSagas(_Watched, MemorySagaStore):
    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        self._crash.reach("before_find")
        return super().find(lookup, handling)

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._commit_watched(super().insert, record, effects)

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._commit_watched(super().update, record, change, effects)

    def delete(self, record: Record, effects: Effects) -> None:
        self._commit_watched(super().delete, record, effects)

    def record(self, effects: Effects) -> None:
        self._commit_watched(super().record, effects)


class _WatchedAggregates(_Watched, MemoryAggregateStore):
    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        self._crash.reach("before_find")
        return self._commit_watched(super().insert, rules, additions)

    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        self._crash.reach("before_find")
        return super().claim(rules, group, token)

    def remove(self, rules: Rules, group: str, token: str, **options: Any) -> bool:
        return self._commit_watched(super().remove, rules, group, token, **options)

    def release(self, rules: Rules, group: str, token: str, **options: Any) -> None:
        self._commit_watched(super().release, rules, group, token, **options)
