"""``AggregateStore.claim``: the items that a flush receives, and the reason."""

import pytest

from celery_sagas.stores.items import Added, Item, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    HOURLY,
    IDLE,
    LEASE,
    NAME,
    PAIRS,
    add,
    attempts,
    buffered,
    due_at,
    flush,
    ids_of,
    nothing_changed,
    numbered,
    states,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR


class FlushingContract(StoreFixtures):
    """A flush takes a snapshot under a lease."""

    def test_nothing_is_taken_before_the_trigger_has_fired(self, backend: Backend) -> None:
        """The claim checks the trigger again, whichever caller asked for the flush."""
        add(backend, PAIRS, "a")
        with nothing_changed(backend):
            assert backend.aggregates.claim(PAIRS, "", "one") is None

    def test_nothing_is_taken_where_nothing_is(self, backend: Backend) -> None:
        """Nothing is prepared for a name or a group."""
        assert backend.aggregates.claim(PAIRS, "no such group", "one") is None
        assert backend.aggregates.claim(PAIRS._replace(name="no such aggregator"), "", "one") is None
        assert backend.buffers.groups(NAME, 9) == []

    def test_snapshot_has_what_was_inserted(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a")
        clock.advance(5)
        add(backend, PAIRS, "b")
        inserted = backend.buffers.read(NAME, "", 9)
        snapshot = flush(backend, PAIRS)
        assert [item._replace(state="free") for item in snapshot.items] == inserted
        assert [(item.at, item.attempts) for item in snapshot.items] == [(clock.now - 5, 0), (clock.now, 0)]
        assert (snapshot.reason, snapshot.unresolved, snapshot.is_more) == ("size", 0, False)

    def test_items_are_leased(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """They stay in the buffer, and every process knows of the lease."""
        add(backend, PAIRS, *"abc")
        assert taken_by(backend, PAIRS) == ["a", "b"]
        assert states(open_backend(prefix)) == {"a": "leased", "b": "leased", "c": "free"}
        assert taken_by(open_backend(prefix), PAIRS, "two") == []

    def test_first_items_come_first(self, backend: Backend) -> None:
        ids = numbered(7)
        add(backend, PAIRS, *ids)
        taken = [taken_by(backend, PAIRS, token) for token in ("one", "two", "three", "four")]
        assert taken == [ids[:2], ids[2:4], ids[4:6], []]

    def test_batch_is_never_larger_than_its_size(self, backend: Backend, clock: Clock) -> None:
        """It is not larger where time fires the trigger for more, either."""
        rules = HOURLY._replace(size=3)
        add(backend, rules, *numbered(8))
        clock.advance(HOUR)
        assert [len(taken_by(backend, rules, token)) for token in ("one", "two", "three", "four")] == [3, 3, 2, 0]

    def test_batch_without_a_size_has_a_thousand_items_at_most(self, backend: Backend, clock: Clock) -> None:
        ids = numbered(2_500)
        add(backend, HOURLY, *ids)
        clock.advance(HOUR)
        for token, first, is_more in (("one", 0, True), ("two", 1_000, True), ("three", 2_000, False)):
            snapshot = flush(backend, HOURLY, token)
            assert ids_of(snapshot.items) == ids[first : first + 1_000]
            assert (snapshot.reason, snapshot.is_more) == ("age", is_more)
            backend.aggregates.remove(HOURLY, "", token)
        assert backend.buffers.groups(NAME, 9) == []

    def test_three_thousand_items_are_taken_and_removed_at_once(self, backend: Backend) -> None:
        large, ids = PAIRS._replace(size=3_000), numbered(3_000)
        add(backend, large, *ids, "last")
        assert taken_by(backend, large) == ids
        backend.aggregates.remove(large, "", "one")
        assert buffered(backend) == ["last"]

    @pytest.mark.parametrize(("rules", "reason"), [(HOURLY, "age"), (IDLE, "idle")])
    def test_time_fires_the_trigger_at_its_moment(self, backend: Backend, clock: Clock, rules: Rules, reason: str) -> None:
        add(backend, rules, "a")
        clock.advance(HOUR - 1)
        assert backend.aggregates.claim(rules, "", "one") is None
        clock.advance(1)
        assert flush(backend, rules).reason == reason

    @pytest.mark.parametrize(("rules", "wait"), [(HOURLY, HOUR // 2), (IDLE, HOUR)], ids=["age", "idle"])
    def test_time_fires_the_trigger_for_everything_that_was_free(
        self, backend: Backend, clock: Clock, rules: Rules, wait: int
    ) -> None:
        """Items beyond one batch do not wait for a time of their own, whatever comes after them."""
        add(backend, CLOSED, "oldest")
        clock.advance(HOUR // 2)
        add(backend, CLOSED, *numbered(1_000))
        clock.advance(wait)
        first = flush(backend, rules, "one")
        assert (len(first.items), first.is_more) == (1_000, True)
        assert add(backend, rules, "later") == Added(1)
        second = flush(backend, rules, "two")
        assert (ids_of(second.items), second.is_more) == (["item 999", "later"], False)
        assert {first.reason, second.reason} == {"age" if rules.within_ms else "idle"}

    def test_what_came_after_the_trigger_has_fired_waits_for_its_own_time(self, backend: Backend, clock: Clock) -> None:
        rules = HOURLY._replace(size=2)
        add(backend, rules, "a")
        clock.advance(HOUR)
        assert taken_by(backend, rules) == ["a"]
        add(backend, rules, "b")
        assert due_at(backend) == clock.now + LEASE
        assert taken_by(backend, rules, "two") == []
        clock.advance(HOUR)
        backend.aggregates.remove(rules, "", "one")
        assert taken_by(backend, rules, "two") == ["b"]

    def test_size_comes_before_every_other_reason(self, backend: Backend, clock: Clock) -> None:
        rules = HOURLY._replace(size=2, idle_ms=HOUR)
        add(backend, rules, *"abc")
        clock.advance(HOUR)
        assert [flush(backend, rules, token).reason for token in ("one", "two")] == ["size", "age"]

    def test_caller_asks_for_another_flush_if_there_is_more(self, backend: Backend, clock: Clock) -> None:
        """No other caller does, since a flush is requested."""
        add(backend, PAIRS, *"abcd")
        assert flush(backend, PAIRS).is_more
        assert due_at(backend) == clock.now + LEASE
        assert add(backend, PAIRS, "e") == Added(1)

    def test_caller_does_not_ask_for_what_must_wait(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abc")
        assert not flush(backend, PAIRS).is_more

    def test_repeat_returns_the_same_items(self, backend: Backend) -> None:
        """The reply was lost, the call is repeated."""
        add(backend, PAIRS, *"abcde")
        first = flush(backend, PAIRS)
        assert flush(backend, PAIRS) == first
        assert ids_of(flush(backend, PAIRS, "two").items) == ["c", "d"]

    def test_unresolved_items_are_counted_and_not_given(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b", is_unreadable=True)
        add(backend, PAIRS, "c")
        add(backend, PAIRS, "d", is_unreadable=True)
        add(backend, PAIRS, "e")
        snapshot = flush(backend, PAIRS)
        assert (ids_of(snapshot.items), snapshot.unresolved) == (["c", "e"], 3)
        assert states(backend) == {"a": "unresolved", "b": "unresolved", "c": "leased", "d": "unresolved", "e": "leased"}

    def test_unresolved_items_of_the_group_alone_are_counted(self, backend: Backend) -> None:
        add(backend, PAIRS, "x", group="other", is_unreadable=True)
        add(backend, PAIRS, "a", "b")
        assert flush(backend, PAIRS).unresolved == 0

    def test_claim_takes_from_one_group(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b", group="one")
        add(backend, PAIRS, "a", "b", group="two")
        assert taken_by(backend, PAIRS, group="one") == ["a", "b"]
        assert states(backend, "two") == {"a": "free", "b": "free"}
        assert taken_by(backend, PAIRS, group="two") == ["a", "b"]

    def test_claim_counts_no_attempt(self, backend: Backend) -> None:
        """It has not failed yet."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        assert attempts(backend) == {"a": 0, "b": 0}

    def test_snapshot_is_a_fresh_copy(self, backend: Backend) -> None:
        """It is a point-in-time view."""
        add(backend, PAIRS, *"ab")
        before: tuple[Item, ...] = flush(backend, PAIRS).items
        add(backend, PAIRS, *"cd")
        assert ids_of(before) == ["a", "b"]
        assert taken_by(backend, PAIRS) == ["a", "b"]
