"""Pages of instances in memory."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from celery_sagas.stores.instances import Instances, Page, check_place, glance_at
from celery_sagas.stores.memory.state import MemoryStore
from celery_sagas.stores.records import Record


class MemoryInstances(MemoryStore, Instances):
    """Pages of the sorted lists of places, and of ids."""

    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        if after:
            check_place(after)
        with self._state.lock:
            places = _cut(self._state.instances.places(name), limit, after, oldest_first=oldest_first)
            return self._page(places, [place.partition(":")[2] for place in places], limit)

    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        with self._state.lock:
            ids = _cut(self._state.instances.places(name, tag), limit, after)
            return self._page(ids, ids, limit)

    def read(self, name: str, ids: Sequence[str]) -> list[Record]:
        with self._state.lock:
            found = (self._state.instances.get(id) for id in ids)
            return [record for record in found if record is not None and record.saga == name]

    def count(self, name: str, at_most: int, tag: tuple[str, str] | None = None) -> int:
        with self._state.lock:
            return min(len(self._state.instances.places(name, tag)), at_most)

    def _page(self, places: Sequence[str], ids: Sequence[str], limit: int) -> Page:
        glances = tuple(glance_at(self._state.instances[id]) for id in ids[:limit])
        return Page(glances, places[limit - 1] if len(places) > limit else "")


def _cut(places: Sequence[str], limit: int, after: str, *, oldest_first: bool = False) -> Sequence[str]:
    """Return the places that follow one, in the order in which they are asked for, and one more than a page has."""
    if oldest_first:
        start = bisect_right(places, after)
        return places[start : start + limit + 1]
    end = bisect_left(places, after) if after else len(places)
    return places[max(end - limit - 1, 0) : end][::-1]
