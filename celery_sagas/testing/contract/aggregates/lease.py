"""``AggregateStore.release`` and ``renew``, leases that expire, and batches that become smaller."""

import pytest

from celery_sagas.stores.items import Added, Counts, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
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


class LeasingContract(StoreFixtures):
    """Leased items are flushed, or come back."""

    def test_leased_items_come_back_when_the_lease_ends(self, backend: Backend, clock: Clock) -> None:
        """The worker has died; that counts as an attempt."""
        add(backend, PAIRS, "a", "b")
        before = flush(backend, PAIRS, "one").items
        clock.advance(LEASE - 1)
        assert taken_by(backend, PAIRS, "two") == []
        clock.advance(1)
        snapshot = flush(backend, PAIRS, "two")
        assert [item._replace(attempts=0) for item in snapshot.items] == list(before)
        assert [item.attempts for item in snapshot.items] == [1, 1]

    def test_trigger_has_fired_for_what_comes_back(self, backend: Backend, clock: Clock) -> None:
        """It does not wait for others to fill its batch."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        backend.aggregates.remove(PAIRS, "", "one", unreadable=numbers_of(flush(backend, PAIRS, "one").items[0]))
        add(backend, PAIRS, "c", "d")
        flush(backend, PAIRS, "two")
        clock.advance(LEASE)
        snapshot = flush(backend, PAIRS._replace(size=3), "three")
        assert (ids_of(snapshot.items), snapshot.reason, snapshot.unresolved) == (["c", "d"], "again", 1)

    def test_all_leases_that_have_ended_are_given_up_at_once(self, backend: Backend, clock: Clock) -> None:
        """Each item stands where it stood."""
        add(backend, PAIRS, *"abcdef")
        flush(backend, PAIRS, "one")
        flush(backend, PAIRS, "two")
        clock.advance(LEASE - 1)
        flush(backend, PAIRS, "three")
        clock.advance(1)
        six = PAIRS._replace(size=6)
        assert taken_by(backend, six, "four") == ["a", "b", "c", "d"]
        assert states(backend) == dict.fromkeys("abcdef", "leased")
        assert attempts(backend) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 0, "f": 0}

    def test_claim_before_the_trigger_has_fired_takes_what_has_come_back(self, backend: Backend, clock: Clock) -> None:
        """Returned items fire it, whatever the size says."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        clock.advance(LEASE)
        assert taken_by(backend, CLOSED, "two") == ["a", "b"]

    def test_released_items_are_free_at_once(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        """They are free for every process."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one")
        assert states(backend) == {"a": "free", "b": "free"}
        assert taken_by(open_backend(prefix), PAIRS, "two") == ["a", "b"]

    def test_release_counts_an_attempt(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        for count in (1, 2, 3):
            flush(backend, PAIRS)
            backend.aggregates.release(PAIRS, "", "one")
            assert attempts(backend) == {"a": count, "b": count}
        assert [item.attempts for item in flush(backend, PAIRS, "last").items] == [3, 3]

    def test_release_that_is_nobodys_fault_counts_none(self, backend: Backend) -> None:
        """The worker shuts down."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one", counted=False)
        assert attempts(backend) == {"a": 0, "b": 0}
        assert states(backend) == {"a": "free", "b": "free"}

    def test_trigger_has_fired_for_what_was_released(self, backend: Backend) -> None:
        """The rules by which it is checked do not matter."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one")
        snapshot = flush(backend, CLOSED, "two")
        assert (ids_of(snapshot.items), snapshot.reason) == (["a", "b"], "again")

    def test_trigger_has_not_fired_for_what_comes_after_a_release(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one")
        flush(backend, PAIRS, "two")
        backend.aggregates.remove(PAIRS, "", "two")
        add(backend, CLOSED, "c", "d")
        assert taken_by(backend, CLOSED, "three") == []

    def test_released_items_stand_where_they_stood(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcdef")
        numbers = [item.number for item in backend.buffers.read(NAME, "", 9)]
        for token in ("one", "two", "three"):
            flush(backend, PAIRS, token)
        for token in ("two", "three", "one"):
            backend.aggregates.release(PAIRS, "", token)
        assert buffered(backend) == [*"abcdef"]
        assert [item.number for item in backend.buffers.read(NAME, "", 9)] == numbers
        assert [taken_by(backend, PAIRS, token) for token in ("4", "5", "6")] == [["a", "b"], ["c", "d"], ["e", "f"]]

    def test_caller_will_ask_after_a_delay(self, backend: Backend, clock: Clock) -> None:
        """No other caller asks until then, and for as long as a flush may take to begin."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one", delay_ms=5_000)
        assert due_at(backend) == clock.now + 5_000 + LEASE
        clock.advance(5_000 + LEASE - 1)
        assert add(backend, PAIRS, "c") == Added(1)
        clock.advance(1)
        assert add(backend, PAIRS, "c") == Added(0, needs_flush=True)

    def test_released_items_are_due_if_the_retry_was_lost(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one")
        assert due_at(backend) == clock.now + LEASE
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []
        clock.advance(LEASE)
        assert len(backend.aggregates.claim_due([NAME], 9, LEASE)) == 1

    def test_items_are_rejected_and_unresolved_at_release(self, backend: Backend) -> None:
        """Those that cannot be flushed do not stop the others."""
        four = PAIRS._replace(size=4)
        add(backend, four, *"abcd")
        items = flush(backend, four).items
        backend.aggregates.release(four, "", "one", rejected=dead_letters_of(items[2]), unreadable=numbers_of(items[0]))
        assert states(backend) == {"a": "unresolved", "b": "free", "d": "free"}
        assert attempts(backend) == {"a": 0, "b": 1, "d": 1}
        assert backend.buffers.count(NAME) == Counts(1, 3, 1)
        assert [dead_letter.message_id for dead_letter in backend.dead.list(9)] == ["c"]
        assert taken_by(backend, four, "two") == ["b", "d"]

    def test_release_that_rejects_every_item_removes_the_group(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        items = flush(backend, PAIRS).items
        backend.aggregates.release(PAIRS, "", "one", rejected=dead_letters_of(*items))
        assert backend.buffers.groups(NAME, 9) == []
        assert backend.dead.count() == 2

    def test_lease_that_was_given_up_is_not_released(self, backend: Backend, clock: Clock) -> None:
        """Another run has the items now."""
        add(backend, PAIRS, "a", "b")
        items = flush(backend, PAIRS, "one").items
        clock.advance(LEASE)
        flush(backend, PAIRS, "two")
        with nothing_changed(backend), lease_lost():
            backend.aggregates.release(PAIRS, "", "one", rejected=dead_letters_of(items[0]))

    def test_lease_that_nobody_has_is_not_released(self, backend: Backend) -> None:
        """The call releases the items of its own token alone."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        for token in ("two", "ONE", "one "):
            with nothing_changed(backend), lease_lost(token):
                backend.aggregates.release(PAIRS, "", token)
        with lease_lost(group="no such group"):
            backend.aggregates.release(PAIRS, "no such group", "one")

    def test_lease_that_has_ended_may_be_released(self, backend: Backend, clock: Clock) -> None:
        """Only whether it was given up counts."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        clock.advance(9 * LEASE)
        backend.aggregates.release(PAIRS, "", "one")
        assert attempts(backend) == {"a": 1, "b": 1}


#: Batches of eight, until their flush has failed twice.
EIGHT = PAIRS._replace(size=8, max_attempts=2)


class RenewalContract(StoreFixtures):
    """A flush that takes its time keeps its items; one that fails again and again gets fewer."""

    def test_renewed_lease_begins_anew(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        for _ in range(3):
            clock.advance(LEASE - 1)
            assert backend.aggregates.renew(PAIRS, "", "one") is True
        assert due_at(backend) == clock.now + LEASE
        clock.advance(LEASE - 1)
        assert taken_by(backend, PAIRS, "two") == []
        clock.advance(1)
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]
        assert attempts(backend) == {"a": 1, "b": 1}

    def test_lease_is_renewed_for_as_long_as_the_rules_say(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        assert backend.aggregates.renew(PAIRS._replace(lease_ms=9 * LEASE), "", "one")
        clock.advance(9 * LEASE - 1)
        assert taken_by(backend, PAIRS, "two") == []
        clock.advance(1)
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]

    def test_lease_that_has_ended_may_be_renewed(self, backend: Backend, clock: Clock) -> None:
        """It was not given up."""
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        clock.advance(LEASE)
        assert backend.aggregates.renew(PAIRS, "", "one") is True
        assert taken_by(backend, PAIRS, "two") == []

    def test_lease_that_was_given_up_is_not_renewed(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS, "one")
        clock.advance(LEASE)
        flush(backend, PAIRS, "two")
        with nothing_changed(backend):
            assert backend.aggregates.renew(PAIRS, "", "one") is False

    @pytest.mark.parametrize("left", [0, 1])
    def test_lease_that_was_ended_by_removal_is_not_renewed(self, backend: Backend, left: int) -> None:
        """The flush has just finished, whatever it has left."""
        add(backend, PAIRS, *"abc"[: 2 + left])
        flush(backend, PAIRS)
        backend.aggregates.remove(PAIRS, "", "one")
        with nothing_changed(backend):
            assert backend.aggregates.renew(PAIRS, "", "one") is False

    def test_lease_that_was_released_is_not_renewed(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        backend.aggregates.release(PAIRS, "", "one")
        with nothing_changed(backend):
            assert backend.aggregates.renew(PAIRS, "", "one") is False

    def test_lease_that_nobody_has_is_not_renewed(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        with nothing_changed(backend):
            assert not any(backend.aggregates.renew(PAIRS, "", token) for token in ("two", "ONE", "one "))
            assert not backend.aggregates.renew(PAIRS, "no such group", "one")
            assert not backend.aggregates.renew(PAIRS._replace(name="other"), "", "one")

    def test_one_lease_is_renewed_and_no_other(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS, "one")
        flush(backend, PAIRS, "two")
        clock.advance(LEASE - 1)
        backend.aggregates.renew(PAIRS, "", "two")
        clock.advance(1)
        assert taken_by(backend, PAIRS, "three") == ["a", "b"]
        assert taken_by(backend, PAIRS, "four") == []

    def test_batches_halve_after_too_many_attempts(self, backend: Backend) -> None:
        """They halve down to the item that fails alone."""
        add(backend, EIGHT, *numbered(8))
        assert [_fail(backend, EIGHT, token) for token in "12345"] == [8, 8, 4, 2, 1]

    def test_item_that_failed_alone_for_the_last_time_comes_alone(self, backend: Backend) -> None:
        """The run that claims it rejects it."""
        one = PAIRS._replace(size=1, max_attempts=1)
        add(backend, one, "a", "b")
        assert [_fail(backend, one, token) for token in "123"] == [1, 1, 1]
        [item] = flush(backend, one, "last").items
        assert (item.id, item.attempts) == ("a", 3)
        backend.aggregates.remove(one, "", "last", rejected=dead_letters_of(item))
        assert states(backend) == {"b": "free"}

    def test_item_that_has_failed_ends_the_batch_of_those_that_have_not(self, backend: Backend) -> None:
        """A batch is no larger than each of its items allows."""
        add(backend, EIGHT, *"abcdefgh")
        for token in ("one", "two"):
            flush(backend, EIGHT, token)
            backend.aggregates.release(EIGHT, "", token)
        flush(backend, EIGHT, "three")
        flush(backend, EIGHT, "four")
        backend.aggregates.release(EIGHT, "", "four")
        backend.aggregates.release(EIGHT, "", "three", counted=False)
        assert attempts(backend) == {**dict.fromkeys("abcd", 2), **dict.fromkeys("efgh", 3)}
        assert [taken_by(backend, EIGHT, token) for token in "567"] == [[*"abcd"], [*"ef"], [*"gh"]]

    def test_item_that_has_failed_waits_for_a_smaller_batch(self, backend: Backend) -> None:
        """Those before it are flushed without it."""
        add(backend, EIGHT, *"abcdefghijk")
        flush(backend, EIGHT._replace(size=3), "first")
        assert [_fail(backend, EIGHT, token) for token in "123"] == [8, 8, 4]
        backend.aggregates.release(EIGHT, "", "first", counted=False)
        assert [taken_by(backend, EIGHT, token) for token in "4567"] == [[*"abc"], [*"de"], [*"fg"], [*"hijk"]]

    def test_items_that_have_not_failed_may_follow_those_that_have(self, backend: Backend) -> None:
        """They come in the smaller batch, in their order."""
        add(backend, EIGHT._replace(size=2), "a", "b")
        for token in ("one", "two"):
            flush(backend, EIGHT._replace(size=2), token)
            backend.aggregates.release(EIGHT, "", token)
        add(backend, EIGHT, *"cdefghi")
        assert [taken_by(backend, EIGHT, token) for token in "345"] == [[*"abcd"], [], []]
        assert buffered(backend) == [*"abcdefghi"]
        assert backend.buffers.groups(NAME, 9)[0].free == 5


def _fail(backend: Backend, rules: Rules, token: str) -> int:
    items = flush(backend, rules, token).items
    backend.aggregates.release(rules, "", token)
    return len(items)
