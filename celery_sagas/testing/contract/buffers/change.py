"""``Buffers.fire``, ``remove`` and ``clear``: buffered items, changed by hand."""

import pytest

from celery_sagas.errors import ItemNotBuffered, NotBuffered, NothingBuffered
from celery_sagas.stores.items import Added, Counts
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    LEASE,
    NAME,
    PAIRS,
    add,
    buffered,
    dead_letters_of,
    due_at,
    flush,
    ids_of,
    lease_lost,
    nothing_changed,
    numbered,
    numbers_of,
    taken_by,
    unresolved,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR


class OpeningContract(StoreFixtures):
    """A flush is requested by hand."""

    def test_trigger_is_fired_by_hand(self, backend: Backend) -> None:
        add(backend, CLOSED, *"abc")
        assert backend.buffers.fire(CLOSED, "") is True
        snapshot = flush(backend, CLOSED)
        assert (ids_of(snapshot.items), snapshot.reason) == (["a", "b", "c"], "requested")

    def test_trigger_is_fired_for_everything_that_is_there_and_nothing_else(self, backend: Backend) -> None:
        three = CLOSED._replace(size=3)
        add(backend, CLOSED, *"ab")
        backend.buffers.fire(three, "")
        add(backend, CLOSED, "c")
        add(backend, CLOSED, "d")
        first = flush(backend, three, "one")
        assert (ids_of(first.items), first.is_more) == (["a", "b", "c"], False)
        assert taken_by(backend, three, "two") == []

    def test_trigger_is_fired_for_several_batches(self, backend: Backend) -> None:
        """It stays fired until the last of the items."""
        add(backend, CLOSED, *"abcde")
        backend.buffers.fire(PAIRS, "")
        snapshots = [flush(backend, PAIRS, token) for token in ("one", "two", "three")]
        assert [snapshot.is_more for snapshot in snapshots] == [True, True, False]
        assert [ids_of(snapshot.items) for snapshot in snapshots] == [["a", "b"], ["c", "d"], ["e"]]
        assert snapshots[2].reason == "requested"

    def test_caller_asks_for_the_flush_that_it_has_opened(self, backend: Backend, clock: Clock) -> None:
        """No other caller asks; the flush request lasts from now on."""
        add(backend, PAIRS, "a", "b")
        clock.advance(LEASE // 2)
        assert backend.buffers.fire(PAIRS, "") is True
        assert due_at(backend) == clock.now + LEASE
        assert add(backend, PAIRS, "c") == Added(1)
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []
        clock.advance(LEASE)
        assert len(backend.aggregates.claim_due([NAME], 9, LEASE)) == 1

    def test_trigger_is_fired_for_leased_items_too(self, backend: Backend) -> None:
        """They may come back."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        assert backend.buffers.fire(PAIRS, "") is True
        backend.aggregates.remove(PAIRS, "", "one")
        assert backend.buffers.groups(NAME, 9) == []

    def test_trigger_is_fired_up_to_the_last_item_that_is_still_there(self, backend: Backend, clock: Clock) -> None:
        """An item that comes back from a lease is the last one then, and fires the trigger again."""
        add(backend, CLOSED, *"abc")
        backend.buffers.remove(CLOSED, "", "c")
        backend.buffers.fire(CLOSED, "")
        flush(backend, CLOSED, "one")
        clock.advance(LEASE)
        snapshot = flush(backend, CLOSED, "two")
        assert (ids_of(snapshot.items), snapshot.reason) == (["a", "b"], "again")

    def test_nothing_is_fired_where_nothing_can_be_flushed(self, backend: Backend) -> None:
        """There are no empty flushes."""
        add(backend, PAIRS, "a", "b", is_unreadable=True)
        with nothing_changed(backend):
            assert backend.buffers.fire(PAIRS, "") is False
            assert backend.buffers.fire(PAIRS, "no such group") is False
            assert backend.buffers.fire(PAIRS._replace(name="other"), "") is False
        assert backend.buffers.names() == [NAME]


class RemovingContract(StoreFixtures):
    """Items, or all of them, are removed by hand."""

    def test_item_is_removed_by_its_id(self, backend: Backend) -> None:
        add(backend, CLOSED, *"abc")
        add(backend, CLOSED, "d", is_unreadable=True)
        backend.buffers.remove(CLOSED, "", "b")
        backend.buffers.remove(CLOSED, "", "d")
        assert buffered(backend) == ["a", "c"]
        assert unresolved(backend) == []
        assert backend.buffers.count(NAME) == Counts(1, 2, 0)

    def test_removing_the_last_item_removes_the_group(self, backend: Backend) -> None:
        add(backend, HOURLY, "a")
        backend.buffers.remove(HOURLY, "", "a")
        assert backend.buffers.groups(NAME, 9) == []
        with pytest.raises(NothingBuffered):
            backend.buffers.remove(HOURLY, "", "a")

    def test_removed_item_fires_no_trigger(self, backend: Backend) -> None:
        """The free items are counted right after it."""
        add(backend, PAIRS._replace(size=3), "a", "b")
        backend.buffers.remove(PAIRS, "", "a")
        assert taken_by(backend, PAIRS) == []
        assert add(backend, PAIRS, "c").needs_flush
        assert taken_by(backend, PAIRS) == ["b", "c"]

    def test_removed_item_is_remembered(self, backend: Backend, clock: Clock) -> None:
        remembering = CLOSED._replace(remember_ms=HOUR)
        add(backend, remembering, "a", "b")
        backend.buffers.remove(remembering, "", "a")
        assert add(backend, remembering, "a") == Added(0)
        clock.advance(HOUR)
        assert add(backend, remembering, "a") == Added(1)
        assert buffered(backend) == ["b", "a"]

    def test_nothing_is_removed_where_nothing_is(self, backend: Backend) -> None:
        """The partition is empty, or was never there."""
        add(backend, CLOSED, "a", group="other group")
        for rules, group in ((CLOSED, "group"), (CLOSED._replace(name="other"), "other group")):
            with pytest.raises(NothingBuffered) as caught:
                backend.buffers.remove(rules, group, "a")
            assert (caught.value.aggregator, caught.value.group) == (rules.name, group)

    def test_item_that_is_not_there_is_not_removed(self, backend: Backend) -> None:
        """The error has the number of those that are."""
        add(backend, CLOSED, "a", "b", group="group")
        add(backend, CLOSED, "c", group="group", is_unreadable=True)
        with nothing_changed(backend), pytest.raises(ItemNotBuffered) as caught:
            backend.buffers.remove(CLOSED, "group", "A")
        error = caught.value
        assert (error.aggregator, error.group, error.id, error.buffered) == (NAME, "group", "A", 3)

    def test_both_errors_have_one_base(self, backend: Backend) -> None:
        """It is ``NotBuffered``."""
        with pytest.raises(NotBuffered):
            backend.buffers.remove(CLOSED, "", "a")
        add(backend, CLOSED, "b")
        with pytest.raises(NotBuffered):
            backend.buffers.remove(CLOSED, "", "a")

    def test_leased_item_is_not_removed(self, backend: Backend) -> None:
        """A flush has it now."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        with nothing_changed(backend), pytest.raises(ItemNotBuffered):
            backend.buffers.remove(PAIRS, "", "a")
        backend.aggregates.release(PAIRS, "", "one")
        backend.buffers.remove(PAIRS, "", "a")
        assert taken_by(backend, PAIRS, "two") == ["b"]

    def test_item_is_removed_only_if_it_is_unresolved(self, backend: Backend) -> None:
        """Others may be able to read it by now."""
        add(backend, PAIRS, *"abc")
        add(backend, PAIRS, "d", is_unreadable=True)
        flush(backend, PAIRS)
        for id in "acx":
            with nothing_changed(backend), pytest.raises(ItemNotBuffered):
                backend.buffers.remove(PAIRS, "", id, unresolved=True)
        backend.buffers.remove(PAIRS, "", "d", unresolved=True)
        assert buffered(backend) == ["a", "b", "c"]

    def test_group_is_cleared_whatever_is_in_it(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcd")
        add(backend, PAIRS, "e", is_unreadable=True)
        add(backend, PAIRS, "f", group="other")
        flush(backend, PAIRS)
        assert backend.buffers.clear(PAIRS, "") == 5
        assert backend.buffers.count(NAME) == Counts(1, 1, 0)
        assert unresolved(backend) == []
        assert buffered(backend, "other") == ["f"]
        assert backend.buffers.clear(PAIRS, "") == 0

    def test_leases_of_a_cleared_group_are_given_up(self, backend: Backend) -> None:
        """They are lost where the group has new items since, too."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.buffers.clear(PAIRS, "")
        assert not backend.aggregates.renew(PAIRS, "", "one")
        add(backend, PAIRS, "a", "b")
        with nothing_changed(backend), lease_lost():
            backend.aggregates.remove(PAIRS, "", "one")
        with nothing_changed(backend), lease_lost():
            backend.aggregates.release(PAIRS, "", "one")

    def test_cleared_items_are_remembered(self, backend: Backend, clock: Clock) -> None:
        remembering = PAIRS._replace(remember_ms=HOUR)
        add(backend, remembering, *"abc")
        flush(backend, remembering)
        backend.buffers.clear(remembering, "")
        assert add(backend, remembering, *"abcd") == Added(1)
        clock.advance(HOUR)
        assert backend.aggregates.purge(9) == 3

    def test_rejected_items_of_a_cleared_group_stay(self, backend: Backend) -> None:
        """They are no longer buffered."""
        add(backend, PAIRS, *"abc")
        items = flush(backend, PAIRS).items
        backend.aggregates.remove(PAIRS, "", "one", rejected=dead_letters_of(items[0]), unreadable=numbers_of(items[1]))
        assert backend.buffers.clear(PAIRS, "") == 2
        assert backend.buffers.count(NAME) == Counts(0, 0, 0)
        assert [dead_letter.message_id for dead_letter in backend.dead.list(9)] == ["a"]

    def test_three_thousand_items_are_cleared_at_once(self, backend: Backend) -> None:
        add(backend, CLOSED, *numbered(3_000))
        assert backend.buffers.clear(CLOSED, "") == 3_000
        assert backend.buffers.groups(NAME, 9) == []
