"""The due time of a group after each call that changes it."""

import pytest

from celery_sagas.stores.items import Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    IDLE,
    LEASE,
    NAME,
    PAIRS,
    add,
    dead_letters_of,
    due_at,
    flush,
    numbers_of,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE

#: A trigger that fires an hour after the oldest item, half an hour after the last, or for four items.
TIMED = HOURLY._replace(size=4, idle_ms=30 * MINUTE)

each_trigger = pytest.mark.parametrize(
    ("rules", "after"),
    [(CLOSED, 0), (PAIRS, 0), (HOURLY, HOUR), (IDLE, HOUR), (TIMED, 30 * MINUTE), (PAIRS._replace(size=1), LEASE)],
    ids=["none", "size", "age", "idle", "all", "one"],
)


class DueTimesContract(StoreFixtures):
    """A group is due when there is something to do, and not before."""

    @each_trigger
    def test_due_time_after_an_insert(self, backend: Backend, clock: Clock, rules: Rules, after: int) -> None:
        """It is when the first of its times comes, or when the flush request expires."""
        add(backend, rules, "a")
        assert due_at(backend) == (clock.now + after if after else 0)

    def test_due_time_is_that_of_the_last_item_or_of_the_oldest(self, backend: Backend, clock: Clock) -> None:
        start, due = clock.now, []
        for id in "abc":
            add(backend, TIMED, id)
            due.append(due_at(backend) - start)
            clock.advance(20 * MINUTE)
        assert due == [30 * MINUTE, 50 * MINUTE, HOUR]

    def test_due_time_after_a_claim_is_that_of_what_is_left(self, backend: Backend, clock: Clock) -> None:
        """It is the end of the lease, if that comes first."""
        rules = TIMED._replace(lease_ms=20 * MINUTE)
        start = clock.now
        add(backend, rules, *"abc")
        clock.advance(25 * MINUTE)
        add(backend, rules, *"de")
        assert taken_by(backend, rules) == [*"abcd"]
        assert due_at(backend) == start + 45 * MINUTE
        backend.aggregates.renew(rules._replace(lease_ms=HOUR), "", "one")
        assert due_at(backend) == start + 55 * MINUTE
        backend.aggregates.remove(rules, "", "one")
        assert due_at(backend) == start + 55 * MINUTE

    def test_due_time_is_that_of_the_lease_which_ends_first(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS, "one")
        clock.advance(1_000)
        flush(backend, PAIRS, "two")
        assert due_at(backend) == clock.now - 1_000 + LEASE
        backend.aggregates.renew(PAIRS, "", "one")
        clock.advance(1_000)
        backend.aggregates.renew(PAIRS, "", "one")
        assert due_at(backend) == clock.now - 1_000 + LEASE
        backend.aggregates.remove(PAIRS, "", "two")
        assert due_at(backend) == clock.now + LEASE

    def test_due_time_after_a_release_is_that_of_the_mark(self, backend: Backend, clock: Clock) -> None:
        add(backend, TIMED, *"abcd")
        flush(backend, TIMED)
        backend.aggregates.release(TIMED, "", "one", delay_ms=3 * HOUR)
        assert due_at(backend) == clock.now + 3 * HOUR + LEASE

    def test_due_time_after_a_claim_before_the_trigger_has_fired(self, backend: Backend, clock: Clock) -> None:
        """The request of an earlier flush no longer counts."""
        start = clock.now
        add(backend, TIMED, *"abc")
        backend.buffers.fire(TIMED, "")
        flush(backend, TIMED)
        clock.advance(1_000)
        add(backend, TIMED, "d")
        backend.aggregates.claim_due([NAME], 9, HOUR)
        assert backend.aggregates.claim(TIMED, "", "two") is None
        assert due_at(backend) == start + LEASE

    @pytest.mark.parametrize("is_rejected", [False, True], ids=["unreadable", "rejected"])
    def test_due_time_counts_neither_unresolved_nor_rejected_items(self, backend: Backend, is_rejected: bool) -> None:
        add(backend, PAIRS, "a", "b")
        items = flush(backend, PAIRS).items
        add(backend, HOURLY, "c", is_unreadable=True)
        rejected, unreadable = (dead_letters_of(*items), []) if is_rejected else ([], numbers_of(*items))
        backend.aggregates.remove(HOURLY, "", "one", rejected=rejected, unreadable=unreadable)
        assert due_at(backend) == 0

    def test_group_is_due_at_once_if_its_trigger_has_fired_and_nobody_was_asked(self, backend: Backend, clock: Clock) -> None:
        start = clock.now
        add(backend, TIMED, *"abcde")
        clock.advance(LEASE)
        backend.buffers.remove(TIMED, "", "a")
        assert start < due_at(backend) <= clock.now
        assert len(backend.aggregates.claim_due([NAME], 9, LEASE)) == 1

    def test_due_time_after_a_removal_by_hand(self, backend: Backend, clock: Clock) -> None:
        """The next of the items is the oldest."""
        start = clock.now
        for id in "abc":
            add(backend, HOURLY, id)
            clock.advance(MINUTE)
        backend.buffers.remove(HOURLY, "", "b")
        assert due_at(backend) == start + HOUR
        backend.buffers.remove(HOURLY, "", "a")
        assert due_at(backend) == start + HOUR + 2 * MINUTE

    def test_due_time_of_one_group_is_its_own(self, backend: Backend, clock: Clock) -> None:
        add(backend, HOURLY, "a", group="one")
        add(backend, IDLE._replace(idle_ms=MINUTE), "a", group="two")
        add(backend, PAIRS, "a", group="three")
        assert [due_at(backend, group) for group in ("one", "two", "three")] == [clock.now + HOUR, clock.now + MINUTE, 0]

    def test_due_time_after_a_repeat_that_asks(self, backend: Backend, clock: Clock) -> None:
        """It adds nothing, but requests a flush of the group."""
        add(backend, PAIRS, "a", "b")
        clock.advance(LEASE)
        add(backend, PAIRS, "b")
        assert due_at(backend) == clock.now + LEASE
