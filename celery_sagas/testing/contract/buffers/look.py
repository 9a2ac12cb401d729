"""``Buffers.names``, ``count``, ``groups``, ``read`` and ``unresolved``: inspecting buffered items."""

from celery_sagas.stores.items import Counts, Group, Item
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    add,
    dead_letters_of,
    flush,
    ids_of,
    numbered,
    numbers_of,
    states,
    taken_by,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR


class LookingContract(StoreFixtures):
    """Looking changes nothing."""

    def test_nothing_is_seen_where_nothing_is(self, backend: Backend) -> None:
        """The answers are empty, never ``None``, and no errors."""
        assert backend.buffers.names() == []
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.buffers.read(NAME, "", 9) == []
        assert backend.buffers.count(NAME) == Counts(0, 0, 0)
        assert backend.buffers.count(NAME, "group") == Counts(0, 0, 0)

    def test_aggregators_that_have_buffered_anything_are_named(self, backend: Backend) -> None:
        """They are sorted, each once, whatever is left of their items."""
        for name in ("two", "one", "two"):
            add(backend, PAIRS._replace(name=name), "a", "b")
        flush(backend, PAIRS._replace(name="one"))
        backend.aggregates.remove(PAIRS._replace(name="one"), "", "one")
        assert backend.buffers.names() == ["one", "two"]

    def test_items_are_counted_by_their_state(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcde")
        add(backend, PAIRS, "f", "g", is_unreadable=True)
        items = flush(backend, PAIRS).items
        backend.aggregates.remove(PAIRS, "", "one", rejected=dead_letters_of(items[0]))
        flush(backend, PAIRS)
        counts = backend.buffers.count(NAME)
        assert counts == Counts(groups=1, buffered=5, unresolved=2)
        assert counts.resolved == 3

    def test_one_group_is_counted_for_itself(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abc", group="one")
        add(backend, PAIRS, *"ab", group="two")
        add(backend, PAIRS, "c", group="two", is_unreadable=True)
        items = flush(backend, PAIRS, group="two").items
        backend.aggregates.remove(PAIRS, "two", "one", rejected=dead_letters_of(items[0]))
        assert backend.buffers.count(NAME) == Counts(2, 4, 1)
        assert backend.buffers.count(NAME, "one") == Counts(1, 3, 0)
        assert backend.buffers.count(NAME, "two") == Counts(1, 1, 1)
        assert backend.buffers.count(NAME, "three") == Counts(0, 0, 0)
        assert backend.buffers.count("other") == Counts(0, 0, 0)

    def test_group_without_a_name_is_counted_for_itself(self, backend: Backend) -> None:
        """An empty name is a name."""
        add(backend, PAIRS, "a")
        add(backend, PAIRS, "a", "b", group="group")
        assert backend.buffers.count(NAME, "").buffered == 1
        assert backend.buffers.count(NAME, None).buffered == 3

    def test_groups_are_shown_with_what_they_have(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, *"abc", group="leased")
        flush(backend, PAIRS, group="leased")
        add(backend, HOURLY, *"ab", group="timed")
        add(backend, PAIRS, "a", group="unread", is_unreadable=True)
        add(backend, PAIRS, "b", group="unread")
        assert backend.buffers.groups(NAME, 9) == [
            Group("leased", free=1, leased=2, unresolved=0, due_at=clock.now + LEASE),
            Group("timed", free=2, leased=0, unresolved=0, due_at=clock.now + HOUR),
            Group("unread", free=1, leased=0, unresolved=1, due_at=0),
        ]

    def test_groups_come_in_the_order_of_their_names(self, backend: Backend) -> None:
        """They come page after page, the one without a name first."""
        groups = sorted(["", "a", "A", "é", "z", "漢", "😀", "\uff41", "10", "9"])
        for group in reversed(groups):
            add(backend, PAIRS, "item", group=group)
        pages = [backend.buffers.groups(NAME, 4)]
        for _ in range(3):
            pages.append(backend.buffers.groups(NAME, 4, after=pages[-1][-1].group))
            if not pages[-1]:
                break
        assert [len(page) for page in pages] == [4, 4, 2, 0]
        assert [group.group for page in pages for group in page] == groups

    def test_page_follows_a_group_that_is_gone(self, backend: Backend) -> None:
        for group in "abc":
            add(backend, PAIRS, "item", group=group)
        backend.buffers.clear(PAIRS, "b")
        assert [group.group for group in backend.buffers.groups(NAME, 9, after="b")] == ["c"]
        assert [group.group for group in backend.buffers.groups(NAME, 1, after="a")] == ["c"]

    def test_first_items_are_read(self, backend: Backend) -> None:
        """They come in the order of insertion, whatever their state."""
        add(backend, PAIRS, *"edc")
        add(backend, PAIRS, "b", is_unreadable=True)
        add(backend, PAIRS, "a")
        flush(backend, PAIRS)
        assert [(item.id, item.state) for item in backend.buffers.read(NAME, "", 9)] == [
            ("e", "leased"),
            ("d", "leased"),
            ("c", "free"),
            ("b", "unresolved"),
            ("a", "free"),
        ]
        assert ids_of(backend.buffers.read(NAME, "", 4)) == ["e", "d", "c", "b"]

    def test_items_are_read_page_after_page(self, backend: Backend) -> None:
        """A page follows the number of the last item, whatever the states, and also where that item is gone."""
        add(backend, PAIRS, *"edc")
        add(backend, PAIRS, "b", is_unreadable=True)
        add(backend, PAIRS, *"agf")
        add(backend, PAIRS, "other", group="other")
        flush(backend, PAIRS)
        first = backend.buffers.read(NAME, "", 3)
        backend.buffers.remove(PAIRS, "", "c")
        second = backend.buffers.read(NAME, "", 3, after=first[-1].number)
        third = backend.buffers.read(NAME, "", 3, after=second[-1].number)
        assert [ids_of(page) for page in (first, second, third)] == [["e", "d", "c"], ["b", "a", "g"], ["f"]]
        assert ids_of(backend.buffers.read(NAME, "", 9, after=first[0].number)) == ["d", "b", "a", "g", "f"]
        assert backend.buffers.read(NAME, "", 3, after=third[-1].number) == []

    def test_lease_that_has_ended_is_shown_until_it_is_given_up(self, backend: Backend, clock: Clock) -> None:
        """A look does not give it up."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        clock.advance(LEASE)
        assert states(backend) == {"a": "leased", "b": "leased"}
        assert backend.buffers.groups(NAME, 9)[0].leased == 2
        assert backend.aggregates.renew(PAIRS, "", "one")

    def test_looking_changes_nothing(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS)
        clock.advance(LEASE)
        for _ in range(2):
            backend.buffers.names()
            backend.buffers.count(NAME)
            backend.buffers.groups(NAME, 9)
            backend.buffers.read(NAME, "", 9)
        assert [due.group for due in backend.aggregates.claim_due([NAME], 9, LEASE)] == [""]
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]


class UnresolvedContract(StoreFixtures):
    """Unresolved items are listed."""

    def test_nothing_is_unresolved_where_nothing_is(self, backend: Backend) -> None:
        add(backend, CLOSED, "a")
        assert backend.buffers.unresolved(NAME, 9) == []
        assert backend.buffers.unresolved("other", 9) == []

    def test_each_aggregator_is_listed_for_itself(self, backend: Backend) -> None:
        add(backend, CLOSED, "a", group="group", is_unreadable=True)
        add(backend, CLOSED._replace(name="other"), "b", is_unreadable=True)
        [(group, item)] = backend.buffers.unresolved(NAME, 9)
        assert (group, [item]) == ("group", backend.buffers.read(NAME, "group", 9))
        assert item.state == "unresolved"

    def test_items_of_a_group_follow_each_other_in_the_order_of_insertion(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b", group="one")
        add(backend, PAIRS, "c", group="two", is_unreadable=True)
        add(backend, PAIRS, "d", group="one", is_unreadable=True)
        items = flush(backend, PAIRS, group="one").items
        backend.aggregates.remove(PAIRS, "one", "one", unreadable=numbers_of(*items))
        found = unresolved(backend)
        assert [id for group, id in found if group == "one"] == ["a", "b", "d"]
        assert found.index(("two", "c")) in (0, 3)

    def test_failed_attempts_are_told(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        backend.aggregates.release(PAIRS, "", "one")
        [first, _] = flush(backend, PAIRS, "two").items
        backend.aggregates.remove(PAIRS, "", "two", unreadable=numbers_of(first))
        assert [item.attempts for _, item in backend.buffers.unresolved(NAME, 9)] == [1]

    def test_pages_follow_each_other(self, backend: Backend) -> None:
        """They divide groups, too."""
        for group in numbered(5, "group"):
            add(backend, CLOSED, *numbered(3, group), group=group, is_unreadable=True)
        pages = _pages(backend, 4)
        assert [len(page) for page in pages] == [4, 4, 4, 3, 0]
        listed = [each for page in pages for each in page]
        assert listed == backend.buffers.unresolved(NAME, 99)
        assert sorted(item.id for _, item in listed) == sorted(id for group in numbered(5, "group") for id in numbered(3, group))

    def test_page_follows_an_item_that_is_gone(self, backend: Backend) -> None:
        """The caller may resolve, or remove, items between two pages."""
        add(backend, CLOSED, *"abcd", is_unreadable=True)
        _, (group, second), *_ = backend.buffers.unresolved(NAME, 9)
        backend.buffers.remove(CLOSED, "", "a")
        backend.aggregates.resolve(CLOSED, "", [second.number])
        assert ids_of([item for _, item in backend.buffers.unresolved(NAME, 9, (group, second.number))]) == ["c", "d"]

    def test_hundreds_of_items_are_listed_beside_others(self, backend: Backend) -> None:
        add(backend, CLOSED, *numbered(500))
        add(backend, CLOSED, *numbered(300, "unread"), is_unreadable=True)
        assert unresolved(backend) == [("", id) for id in numbered(300, "unread")]


def _pages(backend: Backend, limit: int) -> list[list[tuple[str, Item]]]:
    pages = [backend.buffers.unresolved(NAME, limit)]
    while pages[-1]:
        group, last = pages[-1][-1]
        pages.append(backend.buffers.unresolved(NAME, limit, (group, last.number)))
    return pages
