"""``AggregateStore.renew``, and batches that become smaller."""

import pytest

from celery_sagas.stores.items import Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import (
    LEASE,
    NAME,
    PAIRS,
    add,
    attempts,
    buffered,
    dead_letters_of,
    due_at,
    flush,
    nothing_changed,
    numbered,
    states,
    taken_by,
)
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures

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
