"""``AggregateStore.release`` with a delay: the group pauses."""

import pytest

from celery_sagas.stores.items import Added
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    CLOSED,
    LEASE,
    NAME,
    PAIRS,
    add,
    attempts,
    due_at,
    flush,
    ids_of,
    nothing_changed,
    numbers_of,
    resolve,
    states,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, MINUTE


def pause(backend: Backend, delay_ms: int = MINUTE, run: str = "one") -> None:
    """Let a flush of two items fail, and its group pause."""
    flush(backend, PAIRS, run)
    backend.aggregates.release(PAIRS, "", run, delay_ms=delay_ms)


class PausingContract(StoreFixtures):
    """A flush that has just failed is not tried again before its time, whichever caller asks."""

    def test_claim_gets_nothing_until_the_delay_has_passed(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, *"abc")
        pause(backend)
        clock.advance(MINUTE - 1)
        assert taken_by(backend, PAIRS, "two") == []
        clock.advance(1)
        snapshot = flush(backend, PAIRS, "two")
        assert (ids_of(snapshot.items), snapshot.is_more) == (["a", "b"], False)

    def test_every_process_sees_the_pause(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        add(backend, PAIRS, "a", "b")
        pause(backend)
        assert taken_by(open_backend(prefix), PAIRS, "two") == []

    def test_items_are_free_while_the_group_pauses(self, backend: Backend) -> None:
        """It is the claim that must wait."""
        add(backend, PAIRS, "a", "b")
        pause(backend)
        assert states(backend) == {"a": "free", "b": "free"}
        backend.buffers.remove(PAIRS, "", "a")
        assert states(backend) == {"b": "free"}

    def test_claim_in_a_pause_changes_nothing(self, backend: Backend, clock: Clock) -> None:
        """The flush request lasts, so that no other caller asks before this one does."""
        add(backend, PAIRS, *"abcd")
        pause(backend)
        with nothing_changed(backend):
            assert taken_by(backend, PAIRS, "two") == []
        clock.advance(MINUTE + LEASE - 1)
        assert add(backend, PAIRS, "e") == Added(1)
        clock.advance(1)
        assert add(backend, PAIRS, "f") == Added(1, needs_flush=True)

    def test_claim_in_a_pause_gives_up_no_lease(self, backend: Backend, clock: Clock) -> None:
        """The owner of an ended lease may still remove its items."""
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS, "two")
        pause(backend)
        clock.advance(LEASE)
        with nothing_changed(backend):
            assert taken_by(backend, PAIRS, "three") == []
        assert attempts(backend) == {"a": 0, "b": 0, "c": 1, "d": 1}
        backend.aggregates.remove(PAIRS, "", "two")
        assert states(backend) == {"c": "free", "d": "free"}

    def test_repeat_of_a_claim_is_answered_in_a_pause(self, backend: Backend) -> None:
        """Its lease is from before the pause."""
        add(backend, PAIRS, *"abcd")
        before = flush(backend, PAIRS, "two")
        pause(backend)
        assert flush(backend, PAIRS, "two").items == before.items

    def test_leases_live_on_in_a_pause(self, backend: Backend) -> None:
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS, "two")
        pause(backend)
        assert backend.aggregates.renew(PAIRS, "", "two") is True
        assert backend.aggregates.remove(PAIRS, "", "two") is False
        assert taken_by(backend, PAIRS, "three") == []

    @pytest.mark.parametrize("fills_a_batch", [True, False])
    def test_what_comes_in_a_pause_waits_for_its_end(self, backend: Backend, clock: Clock, fills_a_batch: bool) -> None:
        """It does not overtake what has failed."""
        add(backend, PAIRS, "a", "b")
        pause(backend)
        added = add(backend, PAIRS, *("cd" if fills_a_batch else "c"))
        assert not added.needs_flush
        assert taken_by(backend, PAIRS, "two") == []
        clock.advance(MINUTE)
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]

    def test_mark_of_the_longest_pause_lasts(self, backend: Backend, clock: Clock) -> None:
        """No caller asks in vain while it does."""
        start = clock.now
        add(backend, PAIRS, *"abcd")
        flush(backend, PAIRS, "two")
        pause(backend, HOUR)
        backend.aggregates.release(PAIRS, "", "two")
        clock.advance(LEASE)
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []
        with nothing_changed(backend):
            assert taken_by(backend, PAIRS, "three") == []
        assert due_at(backend) == start + HOUR + LEASE

    @pytest.mark.parametrize("delays", [(HOUR, MINUTE), (HOUR, 0), (MINUTE, HOUR)], ids=["shorter", "none", "longer"])
    def test_longest_pause_lasts(self, backend: Backend, clock: Clock, delays: tuple[int, int]) -> None:
        """The order in which they began does not matter."""
        add(backend, PAIRS, *"abcd")
        for token in ("one", "two"):
            flush(backend, PAIRS, token)
        for token, delay_ms in zip(("one", "two"), delays, strict=True):
            backend.aggregates.release(PAIRS, "", token, delay_ms=delay_ms)
        clock.advance(HOUR - 1)
        assert taken_by(backend, PAIRS, "three") == []
        clock.advance(1)
        assert taken_by(backend, PAIRS, "three") == ["a", "b"]

    def test_pause_that_is_over_does_not_shorten_the_next(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        pause(backend)
        clock.advance(MINUTE)
        pause(backend, run="two")
        clock.advance(MINUTE - 1)
        assert taken_by(backend, PAIRS, "three") == []
        clock.advance(1)
        assert taken_by(backend, PAIRS, "three") == ["a", "b"]

    def test_firing_the_trigger_by_hand_ends_the_pause(self, backend: Backend) -> None:
        """A person has fixed what failed."""
        add(backend, PAIRS, "a", "b")
        pause(backend)
        assert backend.buffers.fire(PAIRS, "") is True
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]

    def test_trigger_that_cannot_be_fired_leaves_the_pause(self, backend: Backend) -> None:
        """Nothing is free, and nothing changes."""
        four = PAIRS._replace(size=4)
        add(backend, four, *"abcd")
        items = flush(backend, four).items
        backend.aggregates.release(four, "", "one", unreadable=numbers_of(*items), delay_ms=MINUTE)
        assert backend.buffers.fire(PAIRS, "") is False
        add(backend, PAIRS, "e", "f")
        assert taken_by(backend, PAIRS, "two") == []

    def test_what_can_be_read_again_waits_for_the_end_of_the_pause(self, backend: Backend, clock: Clock) -> None:
        add(backend, PAIRS, "a", "b")
        first, _ = flush(backend, PAIRS).items
        backend.aggregates.release(PAIRS, "", "one", unreadable=numbers_of(first), delay_ms=MINUTE)
        assert resolve(backend, PAIRS) == 1
        assert taken_by(backend, PAIRS, "two") == []
        clock.advance(MINUTE)
        assert taken_by(backend, PAIRS, "two") == ["a", "b"]

    def test_pause_ends_with_its_group(self, backend: Backend) -> None:
        """A group without items leaves nothing behind."""
        add(backend, PAIRS, "a", "b")
        pause(backend)
        backend.buffers.clear(PAIRS, "")
        add(backend, PAIRS, "c", "d")
        assert taken_by(backend, PAIRS, "two") == ["c", "d"]

    def test_one_group_pauses_and_no_other(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        add(backend, PAIRS, "a", "b", group="other")
        add(backend, PAIRS._replace(name="other"), "a", "b")
        pause(backend)
        assert taken_by(backend, PAIRS, "two", "other") == ["a", "b"]
        assert taken_by(backend, PAIRS._replace(name="other"), "two") == ["a", "b"]

    def test_group_pauses_by_whatever_rules_it_is_looked_at(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        pause(backend)
        for number, rules in enumerate((CLOSED, PAIRS._replace(size=1), PAIRS._replace(lease_ms=1))):
            assert taken_by(backend, rules, f"other {number}") == []
