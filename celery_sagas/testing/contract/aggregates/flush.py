"""``AggregateStore.claim`` and ``remove``: what a flush receives and why, and the end of one that succeeded."""

import pytest

from celery_sagas.stores.items import Added, Counts, Item, Rules
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
    dead_letters_of,
    due_at,
    flush,
    ids_of,
    lease_lost,
    nothing_changed,
    numbered,
    numbers_of,
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


class RemovalContract(StoreFixtures):
    """Flushed items leave the buffer, and nothing else does."""

    def test_items_of_the_lease_are_removed(self, backend: Backend) -> None:
        """They are removed by their ids, never all of the partition."""
        add(backend, PAIRS, *"abcde")
        flush(backend, PAIRS, "one")
        flush(backend, PAIRS, "two")
        backend.aggregates.remove(PAIRS, "", "one")
        assert states(backend) == {"c": "leased", "d": "leased", "e": "free"}

    def test_items_that_came_later_stay(self, backend: Backend) -> None:
        """A snapshot is a view, not a lock."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        add(backend, PAIRS, "c")
        add(backend, PAIRS, "d", is_unreadable=True)
        backend.aggregates.remove(PAIRS, "", "one")
        assert states(backend) == {"c": "free", "d": "unresolved"}

    def test_removal_is_committed_before_it_returns(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        add(backend, PAIRS, *"abc")
        flush(backend, PAIRS)
        backend.aggregates.remove(PAIRS, "", "one")
        assert buffered(open_backend(prefix)) == ["c"]

    def test_removing_every_item_removes_the_group(self, backend: Backend) -> None:
        for group in ("", "group"):
            add(backend, PAIRS, "a", "b", group=group)
            flush(backend, PAIRS, group=group)
            assert backend.aggregates.remove(PAIRS, group, "one") is False
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.buffers.count(NAME) == Counts(0, 0, 0)
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []

    def test_group_that_was_empty_begins_anew(self, backend: Backend, clock: Clock) -> None:
        """No fired trigger, flush request or time of its former items is left."""
        rules = HOURLY._replace(size=2)
        add(backend, rules, "a")
        clock.advance(HOUR)
        flush(backend, rules)
        backend.aggregates.remove(rules, "", "one")
        assert add(backend, rules, "b") == Added(1)
        assert due_at(backend) == clock.now + HOUR
        assert add(backend, rules, "c") == Added(1, needs_flush=True)

    def test_lease_need_not_last(self, backend: Backend, clock: Clock) -> None:
        """It was late, but no other run has had the items since."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        clock.advance(9 * LEASE)
        backend.aggregates.remove(PAIRS, "", "one")
        assert buffered(backend) == []

    def test_lease_that_was_given_up_removes_nothing(self, backend: Backend, clock: Clock) -> None:
        """Another has the items now."""
        add(backend, PAIRS, "a", "b")
        items = flush(backend, PAIRS, "one").items
        clock.advance(LEASE)
        flush(backend, PAIRS, "two")
        with nothing_changed(backend), lease_lost("one"):
            backend.aggregates.remove(PAIRS, "", "one", rejected=dead_letters_of(items[0]))
        backend.aggregates.remove(PAIRS, "", "two")
        with lease_lost("one"):
            backend.aggregates.remove(PAIRS, "", "one")

    def test_lease_that_was_given_up_removes_nothing_of_what_is_free_again(self, backend: Backend, clock: Clock) -> None:
        """It removes nothing where the next claim found its batch smaller, either."""
        once = PAIRS._replace(max_attempts=1)
        add(backend, once, "a", "b")
        flush(backend, once, "one")
        clock.advance(LEASE)
        assert taken_by(backend, once, "two") == ["a"]
        with nothing_changed(backend), lease_lost("one"):
            backend.aggregates.remove(once, "", "one")

    @pytest.mark.parametrize("token", ["two", "ONE", "one ", "", "öne"])
    def test_stranger_removes_nothing(self, backend: Backend, token: str) -> None:
        """Tokens are compared byte by byte."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        with nothing_changed(backend), lease_lost(token):
            backend.aggregates.remove(PAIRS, "", token)

    def test_lease_of_another_group_removes_nothing(self, backend: Backend) -> None:
        for group in ("a", "b"):
            add(backend, PAIRS, "1", "2", group=group)
        flush(backend, PAIRS, group="a")
        with nothing_changed(backend), lease_lost(group="b"):
            backend.aggregates.remove(PAIRS, "b", "one")
        with lease_lost(group="no such group"):
            backend.aggregates.remove(PAIRS, "no such group", "one")
        with nothing_changed(backend), lease_lost(group="a", name="other"):
            backend.aggregates.remove(PAIRS._replace(name="other"), "a", "one")

    def test_lease_that_was_released_removes_nothing(self, backend: Backend) -> None:
        """It has ended."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one")
        with nothing_changed(backend), lease_lost():
            backend.aggregates.remove(PAIRS, "", "one")

    def test_caller_asks_for_a_flush_if_the_trigger_has_fired(self, backend: Backend, clock: Clock) -> None:
        """There was no flush request, or it had expired; there is one now."""
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS)
        clock.advance(LEASE)
        assert backend.aggregates.remove(PAIRS, "", "one") is True
        assert due_at(backend) == clock.now + LEASE
        assert add(backend, PAIRS, "e") == Added(1)

    def test_caller_does_not_ask_for_a_flush_that_is_to_come(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcd")
        assert flush(backend, PAIRS).is_more
        assert backend.aggregates.remove(PAIRS, "", "one") is False

    def test_caller_does_not_ask_before_the_trigger_has_fired(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abc")
        flush(backend, PAIRS)
        assert backend.aggregates.remove(PAIRS, "", "one") is False
        assert due_at(backend) == 0

    def test_unreadable_item_stays_in_the_buffer(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        [first, _] = flush(backend, PAIRS).items
        backend.aggregates.remove(PAIRS, "", "one", unreadable=numbers_of(first))
        assert backend.buffers.read(NAME, "", 9) == [first._replace(state="unresolved")]
        assert backend.buffers.unresolved(NAME, 9) == [("", first._replace(state="unresolved"))]
        assert add(backend, PAIRS, "a", "b") == Added(1)
        assert add(backend, PAIRS, "c").needs_flush

    def test_rejected_item_becomes_a_dead_letter(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b", group="group")
        [_, second] = flush(backend, PAIRS, group="group").items
        [dead_letter] = dead_letters_of(second, group="group")
        clock.advance(1)
        backend.aggregates.remove(PAIRS, "group", "one", rejected=[dead_letter])
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.dead.list(9) == [dead_letter._replace(at=clock.now)]
        assert backend.dead.get(dead_letter.id) == dead_letter._replace(at=clock.now)

    def test_some_items_stay_and_the_others_are_removed(self, backend: Backend) -> None:
        five = PAIRS._replace(size=5)
        add(backend, five, *"abcdef")
        items = flush(backend, five).items
        backend.aggregates.remove(five, "", "one", rejected=dead_letters_of(items[3], items[0]), unreadable=numbers_of(items[1]))
        assert states(backend) == {"b": "unresolved", "f": "free"}
        assert backend.buffers.count(NAME) == Counts(1, 2, 1)
        assert sorted(dead_letter.message_id for dead_letter in backend.dead.list(9)) == ["a", "d"]

    def test_dead_letter_of_what_is_not_under_the_lease_is_not_kept(self, backend: Backend) -> None:
        """An item of another lease does not become unresolved either."""
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS, "one")
        others = flush(backend, PAIRS, "two").items
        backend.aggregates.remove(PAIRS, "", "one", rejected=dead_letters_of(others[0]), unreadable=numbers_of(others[1]))
        assert states(backend) == {"c": "leased", "d": "leased"}
        assert backend.dead.count() == 0

    def test_two_hundred_items_are_rejected_at_once(self, backend: Backend) -> None:
        many = PAIRS._replace(size=200)
        add(backend, many, *numbered(200))
        dead_letters = dead_letters_of(*flush(backend, many).items)
        backend.aggregates.remove(many, "", "one", rejected=dead_letters)
        assert sorted(dead_letter.id for dead_letter in backend.dead.list(999)) == sorted(
            dead_letter.id for dead_letter in dead_letters
        )
