"""Removing expired rows, a few at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from celery_sagas.stores.ports import Backend

#: Seconds between two checks, if the last one left nothing.
PAUSE_S = 60.0
#: Rows to remove at once, and how often in one sweep.
BATCH, BATCHES = 1_000, 10


@dataclass
class Housekeeping:
    """Removes old entries of the journal, old counts of deliveries, and expired ids of items.

    It checks once a minute. The rows that exceed one sweep are removed by the following sweeps.
    """

    backend: Backend
    retention_s: float  #: how long they are kept
    clock: Callable[[], float]
    forget: Callable[[int], int] | None = None  #: removes ids of items, at most so many

    def __post_init__(self) -> None:
        self._next = self.clock() + PAUSE_S

    def clean(self) -> int:
        """Remove old rows if it is time to; return how many were removed."""
        if self.clock() < self._next:
            return 0
        self._next = self.clock() + PAUSE_S  # also if the store is away: waiting messages are more urgent
        removed = 0
        has_more = False
        for purge in self._purges():
            count = self._purge(purge)
            removed += count
            has_more = has_more or count == BATCH * BATCHES
        if has_more:
            self._next = self.clock()
        return removed

    def _purges(self) -> Iterator[Callable[[int], int]]:
        """Yield the functions that remove at most so many rows of one kind."""
        age_ms = int(self.retention_s * 1000)
        yield partial(self.backend.journal.purge, age_ms)
        yield partial(self.backend.deliveries.purge, age_ms)
        if self.forget is not None:
            yield self.forget

    def _purge(self, purge: Callable[[int], int]) -> int:
        removed = 0
        for _ in range(BATCHES):
            count = purge(BATCH)
            removed += count
            if count < BATCH:
                break
        return removed
