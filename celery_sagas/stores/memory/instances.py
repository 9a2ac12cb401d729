"""Pages of instances in memory: each call looks at all of them."""

from collections.abc import Callable, Iterable, Sequence
from heapq import nlargest, nsmallest
from itertools import islice

from celery_sagas.stores.instances import Glance, Instances, Page, check_place, glance_at
from celery_sagas.stores.memory.state import MemoryStore
from celery_sagas.stores.records import Record


class MemoryInstances(MemoryStore, Instances):
    """Pages that are sorted when they are read: nothing is kept for them."""

    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        if after:
            check_place(after)
        with self._state.lock:
            return _page(map(glance_at, self._under(name)), lambda each: each.place, limit, after, oldest_first=oldest_first)

    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        with self._state.lock:
            return _page(map(glance_at, self._under(name, tag)), lambda each: each.id, limit, after)

    def read(self, name: str, ids: Sequence[str]) -> list[Record]:
        with self._state.lock:
            found = (self._state.instances.get(id) for id in ids)
            return [record for record in found if record is not None and record.saga == name]

    def count(self, name: str, at_most: int, tag: tuple[str, str] | None = None) -> int:
        with self._state.lock:
            return sum(1 for _ in islice(self._under(name, tag), at_most))

    def _under(self, name: str, tag: tuple[str, str] | None = None) -> Iterable[Record]:
        """Yield the instances under a name, or those that have a tag."""
        for record in self._state.instances.values():
            if record.saga == name and (tag is None or tag in self._state.tags[record.id]):
                yield record


def _page(
    found: Iterable[Glance], position: Callable[[Glance], str], limit: int, after: str, *, oldest_first: bool = False
) -> Page:
    follows = str.__gt__ if oldest_first else str.__lt__
    left = (each for each in found if not after or follows(position(each), after))
    chosen = (nsmallest if oldest_first else nlargest)(limit + 1, left, key=position)
    return Page(tuple(chosen[:limit]), position(chosen[limit - 1]) if len(chosen) > limit else "")
