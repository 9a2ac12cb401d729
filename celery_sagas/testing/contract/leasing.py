"""``AggregateStore.release`` and ``renew``, and leases that expire."""

from celery_sagas.stores.items import Added, Counts
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
