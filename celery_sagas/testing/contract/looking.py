"""``Buffers.names``, ``count``, ``groups`` and ``read``: inspecting buffered items."""

from celery_sagas.stores.items import Counts, Group
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    add,
    dead_letters_of,
    flush,
    ids_of,
    states,
    taken_by,
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
