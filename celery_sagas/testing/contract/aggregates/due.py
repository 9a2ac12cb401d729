"""``AggregateStore.claim_due``, and the due time of a group after each call that changes it."""

import pytest

from celery_sagas.stores.items import Added, DueGroup, Rules
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
    numbered,
    numbers_of,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE


def claim_due(backend: Backend, limit: int = 1_000) -> list[str]:
    """Return the groups of the sample aggregator that are due, and request their flushes."""
    return [due.group for due in backend.aggregates.claim_due([NAME], limit, LEASE)]


class DueGroupsContract(StoreFixtures):
    """Nothing that is buffered is forgotten."""

    @pytest.mark.parametrize("rules", [HOURLY, IDLE])
    def test_group_is_due_when_time_fires_its_trigger(self, backend: Backend, clock: Clock, rules: Rules) -> None:
        add(backend, rules, "a", group="group")
        assert due_at(backend, "group") == clock.now + HOUR
        clock.advance(HOUR - 1)
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []
        clock.advance(1)
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == [DueGroup(NAME, "group")]

    def test_group_is_due_when_its_mark_expires(self, backend: Backend, clock: Clock) -> None:
        """The producer died before it asked, or its message was lost."""
        add(backend, PAIRS, "a", "b")
        clock.advance(LEASE - 1)
        assert claim_due(backend) == []
        clock.advance(1)
        assert claim_due(backend) == [""]
        assert taken_by(backend, PAIRS) == ["a", "b"]

    def test_group_is_due_when_a_lease_ends(self, backend: Backend, clock: Clock) -> None:
        """The worker has died."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        assert due_at(backend) == clock.now + LEASE
        clock.advance(LEASE - 1)
        assert claim_due(backend) == []
        clock.advance(1)
        assert claim_due(backend) == [""]
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]

    def test_claimed_group_is_marked(self, backend: Backend, clock: Clock) -> None:
        """No other caller asks, unless this one dies."""
        add(backend, HOURLY, "a")
        clock.advance(HOUR)
        backend.aggregates.claim_due([NAME], 9, 5 * MINUTE)
        assert due_at(backend) == clock.now + 5 * MINUTE
        assert add(backend, HOURLY, "b") == Added(1)
        clock.advance(5 * MINUTE - 1)
        assert claim_due(backend) == []
        clock.advance(1)
        assert claim_due(backend) == [""]

    def test_flush_that_was_asked_for_again_takes_the_mark_away(self, backend: Backend, clock: Clock) -> None:
        add(backend, HOURLY, "a")
        clock.advance(HOUR)
        claim_due(backend)
        assert taken_by(backend, HOURLY) == ["a"]
        assert backend.aggregates.remove(HOURLY, "", "one") is False
        assert claim_due(backend) == []

    def test_longest_due_comes_first(self, backend: Backend, clock: Clock) -> None:
        """Nothing at the head starves what is behind it."""
        for group, minutes in (("c", 3), ("a", 1), ("d", 4), ("b", 2)):
            add(backend, HOURLY._replace(within_ms=minutes * MINUTE), "item", group=group)
        clock.advance(3 * MINUTE)
        assert claim_due(backend, limit=2) == ["a", "b"]
        assert claim_due(backend) == ["c"]

    def test_no_more_than_the_limit_is_claimed(self, backend: Backend, clock: Clock) -> None:
        """The work of a call is bounded."""
        groups = numbered(5, "group")
        for group in groups:
            add(backend, HOURLY, "item", group=group)
        clock.advance(HOUR)
        claims = [claim_due(backend, limit=2) for _ in range(4)]
        assert [len(claimed) for claimed in claims] == [2, 2, 1, 0]
        assert sorted(group for claimed in claims for group in claimed) == groups

    def test_groups_of_the_named_aggregators_are_claimed(self, backend: Backend, clock: Clock) -> None:
        for name in ("one", "two", "three", "Two", "two "):
            add(backend, HOURLY._replace(name=name), "item", group="group")
        clock.advance(HOUR)
        assert backend.aggregates.claim_due([], 9, LEASE) == []
        assert backend.aggregates.claim_due(["no such aggregator"], 9, LEASE) == []
        found = backend.aggregates.claim_due(["two", "one", "no such aggregator"], 9, LEASE)
        assert sorted(found) == [DueGroup("one", "group"), DueGroup("two", "group")]
        assert backend.aggregates.claim_due(["three"], 9, LEASE) == [DueGroup("three", "group")]

    def test_groups_of_several_aggregators_share_the_limit(self, backend: Backend, clock: Clock) -> None:
        """The longest due of all comes first."""
        for name, minutes in (("one", 3), ("two", 1), ("three", 2)):
            add(backend, HOURLY._replace(name=name, within_ms=minutes * MINUTE), "item")
        clock.advance(HOUR)
        found = backend.aggregates.claim_due(["one", "two", "three"], 2, LEASE)
        assert found == [DueGroup("two", ""), DueGroup("three", "")]

    def test_every_process_sees_the_mark(self, backend: Backend, open_backend: OpenBackend, prefix: str, clock: Clock) -> None:
        add(backend, HOURLY, "a")
        clock.advance(HOUR)
        assert claim_due(open_backend(prefix)) == [""]
        assert claim_due(backend) == []

    def test_group_whose_trigger_has_not_fired_any_more_is_due_once(self, backend: Backend, clock: Clock) -> None:
        """Its flush request has expired, and a flush finds nothing to take."""
        add(backend, PAIRS, "a", "b")
        backend.buffers.remove(PAIRS, "", "a")
        clock.advance(LEASE)
        assert claim_due(backend) == [""]
        assert taken_by(backend, PAIRS) == []
        clock.advance(1_000 * HOUR)
        assert claim_due(backend) == []

    def test_group_with_unresolved_items_alone_is_not_due(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        items = flush(backend, PAIRS).items
        backend.aggregates.remove(PAIRS, "", "one", unreadable=numbers_of(*items))
        assert due_at(backend) == 0
        clock.advance(1_000 * HOUR)
        assert claim_due(backend) == []

    def test_few_due_groups_are_found_among_many(self, backend: Backend, clock: Clock) -> None:
        for group in numbered(200, "later"):
            add(backend, HOURLY, "item", group=group)
        add(backend, HOURLY._replace(within_ms=MINUTE), "item", group="soon")
        clock.advance(MINUTE)
        assert claim_due(backend) == ["soon"]
        clock.advance(HOUR)
        assert len(claim_due(backend)) == 201


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
