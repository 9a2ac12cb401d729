"""Listings of a saga with former names: pages of each, merged, while instances are renamed."""

from itertools import islice
from typing import Any

import pytest

from celery_sagas import Saga
from celery_sagas.engine.listing import glances
from celery_sagas.stores.instances import Page
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.testing.samples import start

PAID = ("status", "paid")
#: More than two pages.
INSTANCES = 130

orders = pytest.mark.parametrize(("tag", "oldest_first"), [(None, False), (None, True), (PAID, False)], ids=str)


class Purchase(Saga, correlate_by="order_id", formerly=("order", "cart")):
    order_id: str


PURCHASE: Any = Purchase.__saga__


class Backend(MemoryBackend):
    """A backend that notes which pages are read, and from a moment on renames some instances before each."""

    def __init__(self, renamed: tuple[str, str] | None = None, moment: int = 0) -> None:
        super().__init__("memory://", prefix="")
        self.reads: list[tuple[str, str]] = []
        self._renamed, self._moment = renamed, moment
        self._page, self._tagged = self.instances.page, self.instances.tagged
        self.instances.page, self.instances.tagged = self.page, self.tagged  # type: ignore[method-assign]

    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        self._note(name, after)
        return self._page(name, limit, after, oldest_first=oldest_first)

    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        self._note(name, after)
        return self._tagged(name, tag, limit, after)

    def listed(self, tag: tuple[str, str] | None, *, oldest_first: bool) -> list[str]:
        """Return the keys of the instances of a saga, in the order of the listing."""
        return [glance.key for glance in glances(self, PURCHASE, tag, oldest_first=oldest_first)]

    def _note(self, name: str, after: str) -> None:
        if self._renamed and len(self.reads) >= self._moment:
            self.sagas.rename(*self._renamed, 20)
        self.reads.append((name, after))


def keep(backend: Backend, *names: str) -> list[str]:
    """Keep instances, an equal share under each name, or by turns if there are many; return their keys, the oldest first."""
    keys = [f"{number:03}" for number in range(INSTANCES)]
    for number, key in enumerate(keys):
        start(backend, key, id=key, names=(names[number * len(names) // INSTANCES],), tags=(PAID,))
    return keys


@orders
@pytest.mark.parametrize("names", [("cart", "purchase"), ("purchase", "cart"), ("cart", "order") * 9, ("purchase", "order") * 9])
def test_pages_under_the_earliest_of_the_names_are_read_once(
    tag: tuple[str, str] | None, oldest_first: bool, names: tuple[str, ...]
) -> None:
    """Those under others only as often as a page under an earlier name ends before theirs."""
    backend = Backend()
    keys = keep(backend, *names)
    assert backend.listed(tag, oldest_first=oldest_first) == (keys if oldest_first else keys[::-1])
    first, *others = [[after for under, after in backend.reads if under == name] for name in ("cart", "order", "purchase")]
    assert len(first) == len(set(first)) == (2 if "cart" in names else 1)
    assert all(len(each) <= len(first) + 2 for each in others)


@orders
@pytest.mark.parametrize("names", [("cart", "order", "purchase") * 9, ("order", "cart")])
@pytest.mark.parametrize("renamed", [("purchase", "order"), ("purchase", "cart"), ("order", "cart")])
def test_no_instance_is_missed_that_is_renamed_meanwhile(
    tag: tuple[str, str] | None, oldest_first: bool, names: tuple[str, ...], renamed: tuple[str, str]
) -> None:
    """Nor does it come twice, whenever that happens; code of the release before may rename to what is a former name here."""
    for moment in range(7):
        backend = Backend(renamed, moment)
        keys = keep(backend, *names)
        assert backend.listed(tag, oldest_first=oldest_first) == (keys if oldest_first else keys[::-1])


@orders
def test_it_goes_on_behind_an_instance(tag: tuple[str, str] | None, oldest_first: bool) -> None:
    """A page shows some, and the next one the others: each once, whichever name they have."""
    backend = Backend()
    keep(backend, "order", "purchase", "cart")
    shown, after = list[str](), ""
    while page := list(islice(glances(backend, PURCHASE, tag, oldest_first=oldest_first, after=after), 7)):
        shown += [glance.key for glance in page]
        after = page[-1].place if tag is None else page[-1].id

    assert shown == backend.listed(tag, oldest_first=oldest_first)
    assert len(set(shown)) == INSTANCES
