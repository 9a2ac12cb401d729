"""``AggregateStore.claim_due``: groups that no caller attends to are found."""

import pytest

from celery_sagas.stores.items import Added, DueGroup, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    HOURLY,
    IDLE,
    LEASE,
    NAME,
    PAIRS,
    add,
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
