"""``Leftovers.kept``, ``unread`` and ``note``: what waits for other code, or for people."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    KEEPINGS,
    NAME,
    PAIRS,
    add,
    flush,
    ids_of,
    keep,
    nothing_changed,
    numbered,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures

each_kind = pytest.mark.parametrize("kind", ["unresolved", "rejected"])


class KeepingContract(StoreFixtures):
    """What was kept is listed."""

    @each_kind
    def test_nothing_is_kept_where_nothing_is(self, backend: Backend, kind: str) -> None:
        assert backend.leftovers.kept(NAME, kind, 9) == []
        assert backend.leftovers.unread(NAME, "v1", 9) == []

    @each_kind
    def test_each_kind_and_aggregator_is_listed_for_itself(self, backend: Backend, kind: str) -> None:
        keep(backend, kind, "a", group="group")
        [kept] = backend.leftovers.kept(NAME, kind, 9)
        assert (kept.id, kept.group, kept.kind, kept.note) == ("a", "group", kind, "v1")
        assert backend.leftovers.kept(NAME, "rejected" if kind == "unresolved" else "unresolved", 9) == []
        assert backend.leftovers.kept("other", kind, 9) == []

    @each_kind
    def test_item_that_was_kept_first_comes_first(self, backend: Backend, kind: str) -> None:
        """The order of insertion does not matter."""
        assert ids_of(keep(backend, kind, *"cab")) == ["c", "a", "b"]

    @each_kind
    def test_items_of_several_groups_come_in_the_order_in_which_they_were_kept(
        self, backend: Backend, clock: Clock, kind: str
    ) -> None:
        for id, group in (("1", "c"), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "c")):
            keep(backend, kind, id, group=group, run=id)
            clock.advance(1)
        assert ids_of(backend.leftovers.kept(NAME, kind, 9)) == [*"12345"]

    def test_item_unresolved_from_the_start_is_kept_since_its_insert(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        clock.advance(1)
        add(backend, PAIRS, "c", unread_by="v1")
        clock.advance(1)
        items = flush(backend, PAIRS).items
        backend.aggregates.remove(PAIRS, "", "one", [unresolved(item) for item in items])
        clock.advance(1)
        add(backend, PAIRS, "d", unread_by="v1")
        assert ids_of(backend.leftovers.kept(NAME, "unresolved", 9)) == [*"cabd"]

    @each_kind
    def test_pages_follow_each_other(self, backend: Backend, kind: str) -> None:
        """Pages divide the items of one call, too."""
        ids = numbered(7)[::-1]
        keep(backend, kind, *ids)
        pages = [backend.leftovers.kept(NAME, kind, 3)]
        for _ in range(3):
            after = pages[-1][-1].handle if pages[-1] else ""
            pages.append(backend.leftovers.kept(NAME, kind, 3, after=after) if after else [])
        assert [len(page) for page in pages] == [3, 3, 1, 0]
        assert [kept.id for page in pages for kept in page] == ids

    @each_kind
    def test_page_follows_a_handle_that_is_gone(self, backend: Backend, kind: str) -> None:
        """Whoever pages may put back, or discard, what was seen."""
        handles = [kept.handle for kept in keep(backend, kind, *"cab")]
        backend.leftovers.discard(PAIRS, handles[:2])
        assert ids_of(backend.leftovers.kept(NAME, kind, 9, after=handles[1])) == ["b"]

    @each_kind
    def test_handle_is_never_used_again(self, backend: Backend, kind: str) -> None:
        """A person's late call does not touch what was kept since."""
        handles = {kept.handle for kept in keep(backend, kind, "a")}
        for number in range(3):
            backend.leftovers.put_back(CLOSED, list(handles))
            item = flush(backend, CLOSED, f"{number}").items[0]
            keeping = KEEPINGS[kind]
            backend.aggregates.remove(CLOSED, "", f"{number}", [keeping(item)])
            [kept] = backend.leftovers.kept(NAME, kind, 9)
            assert kept.handle not in handles
            assert backend.leftovers.discard(CLOSED, list(handles)) == 0
            handles.add(kept.handle)

    def test_unread_items_are_those_that_this_reader_has_not_tried(self, backend: Backend) -> None:
        """Other code may know their type."""
        add(backend, CLOSED, "a", "b", unread_by="v1")
        add(backend, CLOSED, "c", unread_by="v2")
        add(backend, CLOSED, "d")
        assert ids_of(backend.leftovers.unread(NAME, "v1", 9)) == ["c"]
        assert ids_of(backend.leftovers.unread(NAME, "v2", 9)) == ["a", "b"]
        assert ids_of(backend.leftovers.unread(NAME, "v3", 2)) == ["a", "b"]
        assert backend.leftovers.unread(NAME, "v3", 9) == backend.leftovers.kept(NAME, "unresolved", 9)
        assert backend.leftovers.unread("other", "v3", 9) == []

    def test_rejected_items_are_not_unread(self, backend: Backend) -> None:
        """They wait for people."""
        keep(backend, "rejected", "a")
        assert backend.leftovers.unread(NAME, "v9", 9) == []

    def test_reader_notes_what_it_cannot_read_either(self, backend: Backend) -> None:
        """It does not try again."""
        add(backend, CLOSED, *"abc", unread_by="v1")
        before = backend.leftovers.unread(NAME, "v2", 9)
        assert backend.leftovers.note(NAME, [before[0].handle, before[2].handle, "0"], "v2") == 2
        assert ids_of(backend.leftovers.unread(NAME, "v2", 9)) == ["b"]
        kept = backend.leftovers.kept(NAME, "unresolved", 9)
        assert kept == [each._replace(note=each.note if each.id == "b" else "v2") for each in before]

    def test_only_unresolved_items_of_the_aggregator_are_noted(self, backend: Backend) -> None:
        [unread], [set_aside] = keep(backend, "unresolved", "a"), keep(backend, "rejected", "b")
        with nothing_changed(backend):
            assert backend.leftovers.note("other", [unread.handle], "v2") == 0
            assert backend.leftovers.note(NAME, [set_aside.handle], "v2") == 0
            assert backend.leftovers.note(NAME, [], "v2") == 0
