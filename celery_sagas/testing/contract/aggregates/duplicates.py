"""``AggregateStore.insert`` and ``purge``: an item that comes again, and a buffer that is full."""

import pytest

from celery_sagas.stores.items import Added, Addition, NewItem
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    LEASE,
    NAME,
    PAIRS,
    add,
    buffered,
    dead_letters_of,
    flush,
    new_items,
    nothing_changed,
    numbers_of,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR

REMEMBERING = PAIRS._replace(remember_ms=HOUR)
BOUNDED = CLOSED._replace(max_buffered=3)


class DuplicatesContract(StoreFixtures):
    """Each delivery is buffered once, and a group holds no more than it may."""

    def test_buffered_item_is_skipped(self, backend: Backend) -> None:
        """It stays as it came first."""
        add(backend, CLOSED, "a", "b")
        with nothing_changed(backend):
            again = (NewItem("b", "another payload"), NewItem("a", "another payload", is_unreadable=True))
            assert backend.aggregates.insert(CLOSED, [Addition("", again)]) == [Added(0)]

    def test_repeated_items_are_skipped_one_by_one(self, backend: Backend) -> None:
        """A producer that received no answer adds everything again."""
        add(backend, CLOSED, "a", "c")
        assert add(backend, CLOSED, "a", "b", "c", "d") == Added(2)
        assert buffered(backend) == ["a", "c", "b", "d"]

    def test_of_one_id_in_one_call_the_first_counts(self, backend: Backend) -> None:
        items = (NewItem("a", "first"), NewItem("b", "second"), NewItem("a", "third"))
        assert backend.aggregates.insert(CLOSED, [Addition("", items)]) == [Added(2)]
        assert [(item.id, item.payload) for item in backend.buffers.read(NAME, "", 9)] == [("a", "first"), ("b", "second")]

    def test_leased_item_is_skipped(self, backend: Backend) -> None:
        """It is buffered as long as it is not removed."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        assert add(backend, PAIRS, "a", "b") == Added(0)

    def test_item_is_skipped_beside_waiting_ones(self, backend: Backend) -> None:
        """It is leased, or was removed a moment ago."""
        for group in ("leased", "removed"):
            add(backend, REMEMBERING, "a", "b", group=group)
            flush(backend, REMEMBERING, group=group)
        backend.aggregates.remove(REMEMBERING, "removed", "one")
        for group in ("leased", "removed"):
            assert add(backend, CLOSED, "c", group=group) == Added(1)
            assert add(backend, CLOSED, "a", group=group) == Added(0)
            assert add(backend, CLOSED, "d", group=group) == Added(1)

    def test_unresolved_item_is_skipped(self, backend: Backend) -> None:
        add(backend, CLOSED, "a", is_unreadable=True)
        assert add(backend, CLOSED, "a") == Added(0)

    def test_id_of_another_group_or_aggregator_is_no_duplicate(self, backend: Backend) -> None:
        """An id is unique in its group."""
        for rules in (REMEMBERING, REMEMBERING._replace(name="other")):
            for group in ("", "group"):
                assert add(backend, rules, "a", "b", group=group) == Added(2, needs_flush=True)
                flush(backend, rules, group=group)
                backend.aggregates.remove(rules, group, "one")

    def test_removed_id_is_forgotten(self, backend: Backend) -> None:
        """Once the row is removed the key is no longer tracked."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.remove(PAIRS, "", "one")
        assert add(backend, PAIRS, "a", "b") == Added(2, needs_flush=True)

    def test_removed_id_is_known_for_a_time(self, backend: Backend, clock: Clock) -> None:
        """A redelivery after the flush is not aggregated again."""
        add(backend, REMEMBERING, "a", "b")
        flush(backend, REMEMBERING)
        backend.aggregates.remove(REMEMBERING, "", "one")
        clock.advance(HOUR - 1)
        assert add(backend, REMEMBERING, "a", "b") == Added(0)
        assert backend.buffers.groups(NAME, 9) == []
        clock.advance(1)
        assert add(backend, REMEMBERING, "a", "b") == Added(2, needs_flush=True)

    def test_id_is_known_for_as_long_as_its_removal_said(self, backend: Backend, clock: Clock) -> None:
        """Another deployment may have another window."""
        add(backend, REMEMBERING, "a", "b")
        flush(backend, REMEMBERING)
        backend.aggregates.remove(REMEMBERING, "", "one")
        assert add(backend, PAIRS, "a", "c") == Added(1)
        clock.advance(HOUR)
        assert add(backend, REMEMBERING._replace(remember_ms=9 * HOUR), "a", "b", "c") == Added(2, needs_flush=True)

    def test_id_that_is_removed_again_is_known_anew(self, backend: Backend, clock: Clock) -> None:
        for _ in range(2):
            assert add(backend, REMEMBERING, "a", "b").added == 2
            flush(backend, REMEMBERING)
            backend.aggregates.remove(REMEMBERING, "", "one")
            clock.advance(HOUR)
        assert backend.aggregates.purge(9) == 2
        assert backend.aggregates.purge(9) == 0

    def test_released_and_unresolved_items_are_not_remembered(self, backend: Backend, clock: Clock) -> None:
        """They are buffered, and nothing more."""
        add(backend, REMEMBERING, "a", "b")
        first = flush(backend, REMEMBERING).items[0]
        backend.aggregates.release(REMEMBERING, "", "one", unreadable=numbers_of(first))
        clock.advance(9 * HOUR)
        assert backend.aggregates.purge(9) == 0

    def test_rejected_item_is_remembered(self, backend: Backend, clock: Clock) -> None:
        add(backend, REMEMBERING, "a", "b")
        backend.aggregates.remove(REMEMBERING, "", "one", rejected=dead_letters_of(flush(backend, REMEMBERING).items[0]))
        assert add(backend, REMEMBERING, "a", "b") == Added(0)
        clock.advance(HOUR)
        assert add(backend, REMEMBERING, "a", "b") == Added(2, needs_flush=True)

    def test_purge_forgets_no_more_than_its_limit(self, backend: Backend, clock: Clock) -> None:
        """A purge must not hold a lock on everything."""
        for number in range(3):
            add(backend, REMEMBERING, "a", "b", group=f"{number}")
            flush(backend, REMEMBERING, group=f"{number}")
            backend.aggregates.remove(REMEMBERING, f"{number}", "one")
        clock.advance(HOUR - 1)
        assert backend.aggregates.purge(4) == 0
        clock.advance(1)
        assert [backend.aggregates.purge(4) for _ in range(3)] == [4, 2, 0]

    def test_purge_leaves_what_is_still_known(self, backend: Backend, clock: Clock) -> None:
        for token in ("one", "two"):
            add(backend, REMEMBERING, f"{token} a", f"{token} b")
            flush(backend, REMEMBERING, token)
            backend.aggregates.remove(REMEMBERING, "", token)
            clock.advance(HOUR // 2)
        assert backend.aggregates.purge(9) == 2
        assert add(backend, REMEMBERING, "one a", "two a") == Added(1)

    def test_buffer_takes_as_many_as_it_may(self, backend: Backend) -> None:
        assert add(backend, BOUNDED, "a", "b") == Added(2)
        assert add(backend, BOUNDED, "c") == Added(1)
        with nothing_changed(backend):
            assert add(backend, BOUNDED, "d") == Added(0, is_full=True)

    def test_nothing_is_added_of_what_would_be_too_much(self, backend: Backend) -> None:
        """The producer adds all of it again."""
        assert add(backend, BOUNDED, *"abcd") == Added(0, is_full=True)
        assert backend.buffers.groups(NAME, 9) == []
        add(backend, BOUNDED, "a")
        assert add(backend, BOUNDED, *"bcd") == Added(0, is_full=True)
        assert buffered(backend) == ["a"]

    def test_duplicates_do_not_count_as_too_much(self, backend: Backend) -> None:
        """Items that are there already take no place."""
        add(backend, BOUNDED, "a", "b")
        assert add(backend, BOUNDED, *"abcc") == Added(1)

    @pytest.mark.parametrize("larger", [3, 9])
    def test_repeat_is_not_refused_by_a_buffer_that_is_full_since(self, backend: Backend, larger: int) -> None:
        """It does not matter what filled it, or made its bound lower."""
        ids = [f"{number}" for number in range(larger)]
        add(backend, CLOSED, *ids)
        assert add(backend, BOUNDED, *ids) == Added(0)

    def test_full_group_does_not_stop_the_others(self, backend: Backend) -> None:
        """Each group has its own bound."""
        additions = [Addition(group, new_items(ids)) for group, ids in (("a", "1"), ("b", "1234"), ("c", "123"))]
        assert backend.aggregates.insert(BOUNDED, additions) == [Added(1), Added(0, is_full=True), Added(3)]

    def test_leased_and_unresolved_items_take_their_place(self, backend: Backend) -> None:
        """All items count, whatever their state."""
        bounded = PAIRS._replace(max_buffered=3)
        add(backend, bounded, "a", "b")
        flush(backend, bounded)
        add(backend, bounded, "c", is_unreadable=True)
        assert add(backend, bounded, "d") == Added(0, is_full=True)
        backend.aggregates.remove(bounded, "", "one")
        assert add(backend, bounded, "d") == Added(1)

    def test_full_buffer_is_due_if_its_flush_was_lost(self, backend: Backend, clock: Clock) -> None:
        """A refused insert notifies no caller of the trigger."""
        bounded = PAIRS._replace(max_buffered=2)
        add(backend, bounded, "a", "b")
        clock.advance(LEASE)
        assert add(backend, bounded, "c") == Added(0, is_full=True)
        assert [due.name for due in backend.aggregates.claim_due([NAME], 9, LEASE)] == [NAME]
