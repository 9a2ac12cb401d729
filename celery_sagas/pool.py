"""A pool of what takes long to make, such as connections; each is lent to one thread, or greenlet, at a time."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar
from weakref import ReferenceType, ref

T = TypeVar("T")

#: Between two looks for one that has become free, while few wait. Seconds.
_PAUSE_S: Final = 0.002
#: How many are few: more of them look more rarely.
_FEW: Final = 8
#: Who has waited for longer is not passed by any more. Seconds.
_TURN_S: Final = 0.02


class Pool(Generic[T]):
    """A pool without locks, and without a count of what is lent.

    A time limit that strikes in the middle of a lock may leave it locked for ever, for every thread; and one that strikes where
    something is lent would leave it counted. Here its place is free once nothing refers to it.

    Args:
        limit: How many there may be, idle and lent ones together.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._idle: deque[T] = deque()
        self._all: set[ReferenceType[T]] = set()
        self._making: set[ReferenceType[_Call]] = set()
        #: Who waits, and until when they may be passed by.
        self._waiting: dict[ReferenceType[_Call], float] = {}

    @property
    def idle(self) -> int:
        """How many can be borrowed at once."""
        return len(self._idle)

    @property
    def lent(self) -> int:
        """How many were borrowed, and have not come back."""
        return _count(self._all) - len(self._idle)

    def borrow(self, make: Callable[[], T], patience_s: float) -> T | None:
        """Return the one that came back last, or else a new one.

        Who finds that another has waited for long waits, too. Otherwise a thread that gives one back would take it again before
        any other has looked, for as long as it has something to do.

        Args:
            make: Makes one.
            patience_s: How long to wait for one to come back, if there may be no more. Seconds.

        Returns:
            ``None`` if all have stayed in use.
        """
        if (not self._waiting or self._may_pass()) and (item := self._take(make)) is not None:
            return item
        return self._wait(make, patience_s)

    def _may_pass(self) -> bool:
        now = time.monotonic()
        for place, turn in list(self._waiting.items()):
            if place() is None:
                self._waiting.pop(place, None)
            elif turn < now:
                return False
        return True

    def _wait(self, make: Callable[[], T], patience_s: float) -> T | None:
        place, now = ref(_call := _Call()), time.monotonic()
        turn, give_up = now + _TURN_S, now + patience_s
        while time.monotonic() < give_up:
            try:
                self._waiting[place] = turn
                time.sleep(_PAUSE_S * max(1, len(self._waiting) / _FEW))
            finally:
                self._waiting.pop(place, None)
            if (item := self._take(make)) is not None:
                return item
        return None

    def _take(self, make: Callable[[], T]) -> T | None:
        while True:
            try:
                item = self._idle.pop()
            except IndexError:
                break
            if ref(item) in self._all:  # else it was forgotten while it came back
                return item
        return self._make(make) if self._known() < self._limit else None

    def _known(self) -> int:
        """Count those that are there, and those that are being made first: what has just been made counts twice, not never."""
        return _count(self._making) + _count(self._all)

    def _make(self, make: Callable[[], T]) -> T | None:
        """Make one, if there is room also for those that others are making now."""
        place = ref(_call := _Call())
        try:
            self._making.add(place)
            if self._known() > self._limit:
                return None
            item = make()
            self._all.add(ref(item))
            return item
        finally:
            self._making.discard(place)

    def give_back(self, item: T) -> bool:
        """Keep one for the next who borrows; return whether it is kept, which it is unless it was forgotten."""
        if ref(item) not in self._all:
            return False
        self._idle.append(item)
        return True

    def forget(self, item: T) -> None:
        """Give the place of one to another that will be made: it is closed already."""
        self._all.discard(ref(item))

    def drain(self) -> Iterator[T]:
        """Take out the idle ones, one after another, each of which is forgotten when the next is taken."""
        while True:
            try:
                item = self._idle.pop()
            except IndexError:
                return
            try:
                yield item
            finally:
                self.forget(item)

    def __iter__(self) -> Iterator[T]:
        """Return all that are known now, idle or lent."""
        return iter([item for known in list(self._all) if (item := known()) is not None])


class _Call:
    """Stands for a call that makes one or waits for one, as long as that has not ended."""


def _count(known: set[ReferenceType[T]]) -> int:
    """Count what is still there, and forget the rest: a callback that did so could be interrupted like all else."""
    for reference in list(known):
        if reference() is None:
            known.discard(reference)
    return len(known)
