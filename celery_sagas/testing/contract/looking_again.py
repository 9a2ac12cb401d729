"""``AggregateStore.insert`` without items: a group is checked by other rules."""

from celery_sagas.stores.items import Added, Addition
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import CLOSED, HOURLY, IDLE, LEASE, NAME, PAIRS, add, buffered, due_at, flush, new_items
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE


class LookingAgainContract(StoreFixtures):
    """An addition without items adds nothing; rules that were changed take effect."""

    def test_addition_without_items_adds_nothing(self, backend: Backend) -> None:
        """It adds no item, no group, no name."""
        assert add(backend, PAIRS) == Added(0)
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.buffers.names() == []
        add(backend, PAIRS, "a")
        assert add(backend, PAIRS) == Added(0)
        assert buffered(backend) == ["a"]

    def test_trigger_is_looked_at_by_the_rules_of_the_addition(self, backend: Backend) -> None:
        """One caller is notified, as by any other addition."""
        add(backend, PAIRS._replace(size=3), "a", "b")
        assert add(backend, PAIRS) == Added(0, needs_flush=True)
        assert due_at(backend) > 0
        assert add(backend, PAIRS) == Added(0)

    def test_due_time_is_set_by_the_rules_of_the_addition(self, backend: Backend, clock: Clock) -> None:
        """The group is due sooner, later, or never."""
        start = clock.now
        add(backend, HOURLY, "a")
        clock.advance(1_000)
        due: list[int] = []
        for rules in (HOURLY._replace(within_ms=MINUTE), HOURLY._replace(within_ms=2 * HOUR), IDLE, CLOSED):
            add(backend, rules)
            due.append(due_at(backend))
        assert due == [start + MINUTE, start + 2 * HOUR, start + HOUR, 0]
        add(backend, HOURLY)
        clock.advance(HOUR)
        assert len(backend.aggregates.claim_due([NAME], 9, LEASE)) == 1

    def test_due_time_is_set_by_the_rules_of_the_item_that_joins(self, backend: Backend, clock: Clock) -> None:
        start = clock.now
        add(backend, HOURLY, "a")
        clock.advance(1_000)
        due: list[int] = []
        for rules in (HOURLY._replace(within_ms=MINUTE), HOURLY._replace(within_ms=2 * HOUR), IDLE, CLOSED):
            add(backend, rules, f"item {len(due)}")
            due.append(due_at(backend))
        assert due == [start + MINUTE, start + 2 * HOUR, clock.now + HOUR, 0]

    def test_item_that_joins_is_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        """It counts as the last for rules that did not hold when it came, too."""
        add(backend, CLOSED, "a")
        clock.advance(MINUTE)
        add(backend, CLOSED, "b")
        add(backend, IDLE)
        assert due_at(backend) == clock.now + HOUR

    def test_caller_is_notified_of_a_trigger_that_time_has_fired_by_new_rules(self, backend: Backend, clock: Clock) -> None:
        add(backend, CLOSED, "a")
        clock.advance(HOUR)
        assert add(backend, HOURLY) == Added(0, needs_flush=True)
        assert due_at(backend) == clock.now + LEASE

    def test_addition_without_items_is_not_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        """It does not restart the idle time."""
        start = clock.now
        add(backend, IDLE, "a")
        clock.advance(MINUTE)
        add(backend, IDLE)
        assert due_at(backend) == start + HOUR

    def test_addition_without_items_is_never_too_much(self, backend: Backend) -> None:
        """There are more items than the new rules allow."""
        add(backend, PAIRS._replace(size=9), *"abc")
        assert add(backend, PAIRS._replace(max_buffered=2)) == Added(0, needs_flush=True)

    def test_mark_of_another_lasts(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        until = clock.now + LEASE
        clock.advance(1_000)
        assert add(backend, PAIRS._replace(lease_ms=HOUR)) == Added(0)
        assert due_at(backend) == until

    def test_leases_last(self, backend: Backend, clock: Clock) -> None:
        """One that has ended is not given up, either."""
        add(backend, PAIRS, *"ab")
        flush(backend, PAIRS)
        clock.advance(LEASE)
        assert add(backend, PAIRS) == Added(0)
        assert backend.aggregates.remove(PAIRS, "", "one") is False
        assert buffered(backend) == []

    def test_additions_with_and_without_items_come_together(self, backend: Backend) -> None:
        """Each has its own answer."""
        add(backend, CLOSED, "a", "b", group="two")
        groups = (("one", "ab"), ("two", ""), ("three", ""), ("one", ""), ("four", "c"))
        added = backend.aggregates.insert(PAIRS, [Addition(group, new_items(ids)) for group, ids in groups])
        assert added == [Added(2, needs_flush=True), Added(0, needs_flush=True), Added(0), Added(0), Added(1)]
        assert [each.group for each in backend.buffers.groups(NAME, 9)] == ["four", "one", "two"]
