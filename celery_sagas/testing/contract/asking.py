"""``AggregateStore.insert``: which caller must ask for a flush, and how often."""

from celery_sagas.stores.items import Added
from celery_sagas.stores.ports import Backend
from celery_sagas.testing.batches import CLOSED, HOURLY, IDLE, LEASE, NAME, PAIRS, add, due_at, flush, taken_by
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import StoreFixtures
from celery_sagas.testing.samples import HOUR


class AskingContract(StoreFixtures):
    """One caller is notified that the trigger has fired, and another if the first has died."""

    def test_item_that_fills_a_batch_fires_the_trigger(self, backend: Backend) -> None:
        assert not add(backend, PAIRS, "a").needs_flush
        assert add(backend, PAIRS, "b").needs_flush

    def test_nobody_else_asks_while_a_flush_is_to_come(self, backend: Backend, clock: Clock) -> None:
        assert add(backend, PAIRS, "a", "b").needs_flush
        clock.advance(LEASE - 1)
        assert not add(backend, PAIRS, "c", "d").needs_flush

    def test_next_insert_asks_if_the_flush_was_lost(self, backend: Backend, clock: Clock) -> None:
        """The flush request expires, since a message may be lost."""
        assert add(backend, PAIRS, "a", "b").needs_flush
        clock.advance(LEASE)
        assert add(backend, PAIRS, "c") == Added(1, needs_flush=True)
        assert add(backend, PAIRS, "d") == Added(1)

    def test_repeat_asks_if_the_first_to_ask_has_died(self, backend: Backend, clock: Clock) -> None:
        """The producer died between the insert and the message; its repeat adds nothing, and asks."""
        assert add(backend, PAIRS, "a", "b").needs_flush
        clock.advance(LEASE)
        assert add(backend, PAIRS, "a", "b") == Added(0, needs_flush=True)
        assert add(backend, PAIRS, "a", "b") == Added(0)

    def test_mark_lasts_as_long_as_the_rules_say(self, backend: Backend, clock: Clock) -> None:
        patient = PAIRS._replace(lease_ms=HOUR)
        assert add(backend, patient, "a", "b").needs_flush
        assert due_at(backend) == clock.now + HOUR
        clock.advance(HOUR - 1)
        assert not add(backend, patient, "c").needs_flush
        clock.advance(1)
        assert add(backend, patient, "d").needs_flush

    def test_claim_takes_the_mark_away(self, backend: Backend) -> None:
        """The flush has begun; the next batch needs a new request."""
        assert add(backend, PAIRS, "a", "b").needs_flush
        flush(backend, PAIRS)
        assert not add(backend, PAIRS, "c").needs_flush
        assert add(backend, PAIRS, "d").needs_flush

    def test_claim_while_the_trigger_has_not_fired_ends_the_flush_request(self, backend: Backend) -> None:
        assert add(backend, PAIRS, "a", "b").needs_flush
        backend.buffers.remove(PAIRS, "", "a")
        assert backend.aggregates.claim(PAIRS, "", "one") is None
        assert due_at(backend) == 0
        assert add(backend, PAIRS, "c").needs_flush

    def test_unresolved_items_do_not_fire_the_trigger(self, backend: Backend) -> None:
        """There are no empty flushes."""
        assert not add(backend, PAIRS, "a", "b", "c", is_unreadable=True).needs_flush
        assert not add(backend, PAIRS, "d").needs_flush
        assert add(backend, PAIRS, "e").needs_flush

    def test_unresolved_items_do_not_fire_the_trigger_by_time(self, backend: Backend, clock: Clock) -> None:
        timed = HOURLY._replace(idle_ms=HOUR)
        add(backend, timed, "a", is_unreadable=True)
        assert due_at(backend) == 0
        clock.advance(2 * HOUR)
        assert not add(backend, timed, "a").needs_flush
        assert taken_by(backend, timed) == []

    def test_unresolved_item_is_not_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        """It does not restart the idle time."""
        add(backend, IDLE, "a")
        clock.advance(HOUR - 1)
        add(backend, IDLE, "b", is_unreadable=True)
        clock.advance(1)
        assert add(backend, IDLE, "b", is_unreadable=True) == Added(0, needs_flush=True)

    def test_skipped_item_is_not_the_last_to_come(self, backend: Backend, clock: Clock) -> None:
        add(backend, IDLE, "a")
        clock.advance(HOUR - 1)
        add(backend, IDLE, "a")
        clock.advance(1)
        assert taken_by(backend, IDLE) == ["a"]

    def test_leased_items_do_not_fire_the_trigger(self, backend: Backend) -> None:
        add(backend, PAIRS, "a", "b")
        flush(backend, PAIRS)
        assert not add(backend, PAIRS, "c").needs_flush

    def test_insert_asks_if_the_oldest_has_waited_for_long_enough(self, backend: Backend, clock: Clock) -> None:
        assert not add(backend, HOURLY, "a").needs_flush
        clock.advance(HOUR - 1)
        assert not add(backend, HOURLY, "b").needs_flush
        clock.advance(1)
        assert add(backend, HOURLY, "c").needs_flush

    def test_each_item_puts_the_idle_time_off(self, backend: Backend, clock: Clock) -> None:
        for id in "abc":
            assert not add(backend, IDLE, id).needs_flush
            clock.advance(HOUR - 1)
        assert taken_by(backend, IDLE) == []
        clock.advance(1)
        assert taken_by(backend, IDLE) == ["a", "b", "c"]

    def test_trigger_without_a_condition_never_fires(self, backend: Backend, clock: Clock) -> None:
        add(backend, CLOSED, *"abc")
        clock.advance(1_000 * HOUR)
        assert not add(backend, CLOSED, "d").needs_flush
        assert backend.aggregates.claim_due([NAME], 9, LEASE) == []

    def test_each_group_has_a_mark_of_its_own(self, backend: Backend) -> None:
        assert add(backend, PAIRS, "a", "b", group="one").needs_flush
        assert add(backend, PAIRS, "a", "b", group="two").needs_flush
        assert add(backend, PAIRS._replace(name="other"), "a", "b", group="one").needs_flush

    def test_counting_changes_nothing(self, backend: Backend, clock: Clock) -> None:
        """A change would rotate the lease with each insert."""
        add(backend, PAIRS, *"ab")
        flush(backend, PAIRS)
        add(backend, PAIRS, "c")
        clock.advance(LEASE // 2)
        for id in "de":
            add(backend, PAIRS, id)
            assert backend.buffers.count(NAME).resolved == backend.buffers.count(NAME, "").buffered
        clock.advance(LEASE // 2 - 1)
        assert backend.buffers.groups(NAME, 9)[0].leased == 2
        assert backend.aggregates.remove(PAIRS, "", "one") is False
