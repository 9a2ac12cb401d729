"""Sagas in virtual time: what a test can do with them, and what they do as in a worker."""

import socket
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from kombu.exceptions import ContentDisallowed

from celery_sagas import clock, publish
from celery_sagas.errors import MisuseError
from celery_sagas.testing.harness.crashes import POINTS
from celery_sagas.testing.harness.harness import START, SagaHarness
from celery_sagas.testing.harness.real_time import RealTimeWarning
from celery_sagas.testing.harness.timeline import ScenarioError
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp
from tests.testing.harness.shop import DAY, HOUR, open_shop

SECOND = timedelta(seconds=1)


def steps(harness: SagaHarness, saga: Any, key: str) -> list[str]:
    """Return the steps of an instance, as the journal has them."""
    return [f"{each.step.partition('.')[2]} {each.kind}" for each in harness.journal(saga, key)]


class TestDelivery:
    def test_message_waits_until_it_is_delivered(self, harness: SagaHarness, shop: Any) -> None:
        sent = harness.send(shop.place, "42")
        assert (harness.pending, harness.sent) == ([sent], [sent])
        assert harness.state(shop.Order, "42") is None

        assert harness.deliver() is sent
        assert [message.task for message in harness.pending] == [shop.charge.name]
        assert harness.state(shop.Order, "42").receipt is None

    def test_run_delivers_all_that_follows(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, order_id="42")
        assert harness.run() == 5  # and the event, and who subscribes to it
        assert harness.assert_state(shop.Order, "42", receipt="r-42").receipt == "r-42"
        assert steps(harness, shop.Order, "42") == ["place started", "charged handled"]
        assert harness.assert_state(shop.Invoice, "42").sent == 1
        assert harness.run() == 0

    def test_any_way_to_publish_reaches_it(self, harness: SagaHarness, shop: Any) -> None:
        shop.place.delay("1")
        shop.app.send_task("order.place", ("2",))
        shop.place.apply_async(("3",))
        shop.place.si("4").apply_async()
        publish(shop.Paid(order_id="5"))
        harness.run()
        assert all(shop.Order.find(key) for key in "1234")
        assert shop.Invoice.find("5").sent == 1

    def test_given_message_comes_first(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "1")
        second = harness.send(shop.place, "2")
        harness.deliver(second)
        assert harness.state(shop.Order, "1") is None
        assert harness.state(shop.Order, "2") is not None

    @pytest.mark.parametrize("which", ["task", "name"])
    def test_first_message_to_a_task(self, harness: SagaHarness, shop: Any, which: str) -> None:
        harness.send(shop.place, "1")
        harness.deliver()
        harness.send(shop.place, "2")
        harness.deliver(shop.charge if which == "task" else shop.charge.name)
        assert shop.ran == ["charge 1"]

    def test_message_delivered_twice_has_one_effect(self, harness: SagaHarness, shop: Any) -> None:
        sent = harness.send(shop.place, "42")
        harness.deliver(sent)
        harness.deliver(sent)
        assert steps(harness, shop.Order, "42") == ["place started"]
        assert len(harness.assert_sent(shop.charge, "42")) == 1

    def test_plain_task_that_is_delivered_twice_runs_twice(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        harness.deliver(harness.assert_sent(shop.charge)[0])
        harness.run()
        assert shop.ran == ["charge 42"] * 2
        assert steps(harness, shop.Order, "42") == ["place started", "charged handled"]

    def test_dropped_message_never_comes(self, harness: SagaHarness, shop: Any) -> None:
        harness.drop(harness.send(shop.place, "42"))
        assert harness.run() == 0
        assert harness.state(shop.Order, "42") is None

    def test_held_messages_wait_for_the_test(self, harness: SagaHarness, shop: Any) -> None:
        harness.hold(shop.charge)
        harness.send(shop.place, "42")
        harness.run()
        harness.advance(HOUR / 2)
        assert [message.task for message in harness.pending] == [shop.charge.name]
        harness.deliver(shop.charge)
        harness.run()
        harness.assert_state(shop.Order, "42", receipt="r-42")

    def test_answer_after_the_deadline_is_late(self, harness: SagaHarness, shop: Any) -> None:
        harness.hold(shop.charged)
        harness.send(shop.place, "42")
        harness.run()
        harness.advance(2 * HOUR)
        harness.assert_state(shop.Order, "42", problem="deadline", receipt=None)
        harness.deliver(shop.charged)
        harness.assert_state(shop.Order, "42", problem="deadline", receipt="r-42")

    def test_expired_message_does_not_run(self, harness: SagaHarness, shop: Any) -> None:
        harness.hold(shop.charge)
        harness.send(shop.place, "42")
        harness.run()
        harness.advance(2 * HOUR)
        harness.deliver(shop.charge)
        assert shop.ran == []
        assert "expired" in harness.timeline()

    def test_retries_come_when_they_are_due(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.flaky)
        harness.run()
        assert (len(shop.ran), len(harness.pending)) == (1, 1)
        harness.advance(59 * SECOND)
        assert len(shop.ran) == 1
        harness.advance(SECOND)
        assert len(shop.ran) == 2
        harness.advance(DAY)
        assert len(shop.ran) == 3
        assert harness.is_quiet

    def test_jitter_of_retries_is_the_same_each_time(self, shop: Any) -> None:
        @shop.app.task(autoretry_for=(ValueError,), retry_backoff=100, max_retries=None)
        def jittery() -> None:
            raise ValueError("not yet")

        def due() -> list[datetime | None]:
            with SagaHarness(shop.app) as harness:
                harness.send(jittery)
                harness.advance(DAY)
                return [message.due_at for message in harness.sent]

        assert due() == due()

    def test_message_that_comes_before_its_instance_is_retried(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.cancel, "42")
        harness.run()
        harness.send(shop.place, "42")
        harness.run()
        harness.assert_state(shop.Order, "42")
        harness.advance(3 * SECOND)
        harness.assert_completed(shop.Order, "42", by=shop.cancel)

    def test_chain_goes_on(self, harness: SagaHarness, shop: Any) -> None:
        (shop.charge.s("1") | shop.charge.s()).apply_async()
        harness.run()
        assert shop.ran == ["charge 1", "charge r-1"]


class TestParticipants:
    def test_answered_by_hand(self, harness: SagaHarness, shop: Any) -> None:
        harness.answer(shop.charge, "by hand")
        harness.send(shop.place, "42")
        harness.run()
        harness.assert_state(shop.Order, "42", receipt="by hand")
        assert shop.ran == []

    def test_answered_by_a_function_of_the_arguments(self, harness: SagaHarness, shop: Any) -> None:
        harness.answer(shop.charge, lambda order_id: order_id * 2)
        harness.send(shop.place, "42")
        harness.run()
        harness.assert_state(shop.Order, "42", receipt="4242")

    @pytest.mark.parametrize("error", [KeyError("declined"), KeyError])
    def test_fails_by_hand(self, harness: SagaHarness, shop: Any, error: Any) -> None:
        harness.fail(shop.charge, error)
        harness.send(shop.place, "42")
        harness.run()
        harness.assert_state(shop.Order, "42", receipt=None, problem="error KeyError")

    def test_silent_one_meets_its_deadline(self, harness: SagaHarness, shop: Any) -> None:
        harness.silence(shop.charge)
        harness.send(shop.place, "42")
        harness.run()
        harness.advance(HOUR - SECOND)
        harness.assert_state(shop.Order, "42", problem="")
        harness.advance(SECOND)
        harness.assert_state(shop.Order, "42", problem="deadline")

    def test_real_again(self, harness: SagaHarness, shop: Any) -> None:
        harness.silence(shop.charge)
        harness.hold(shop.charge)
        harness.restore(shop.charge)
        harness.send(shop.place, "42")
        harness.run()
        assert shop.ran == ["charge 42"]

    def test_once_by_hand(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "1")
        harness.send(shop.place, "2")
        harness.deliver()
        harness.deliver()
        harness.deliver(shop.charge, fail=KeyError)
        harness.run()
        harness.assert_state(shop.Order, "1", problem="error KeyError")
        harness.assert_state(shop.Order, "2", receipt="r-2")

    def test_one_that_is_registered_nowhere(self, harness: SagaHarness, shop: Any) -> None:
        harness.answer("billing.book", 7)
        result = shop.app.send_task("billing.book", ("42",))
        harness.run()
        assert result.get() == 7

    def test_unregistered_one_is_an_error_that_says_what_to_do(self, harness: SagaHarness, shop: Any) -> None:
        shop.app.send_task("billing.book", ("42",))
        with pytest.raises(ScenarioError, match=r"no task 'billing.book' is registered: import its module, .*harness.answer\("):
            harness.run()

    def test_stand_in_leaves_with_the_harness(self, shop: Any) -> None:
        with SagaHarness(shop.app) as harness:
            harness.answer("billing.book", 7)
            shop.app.send_task("billing.book")
            harness.run()
        assert "billing.book" not in shop.app.tasks
        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "42")
            harness.run()
        assert shop.ran == ["charge 42"]


class TestTime:
    def test_stands_still_unless_it_is_moved(self, harness: SagaHarness, shop: Any) -> None:
        assert harness.now == START
        harness.send(shop.place, "42")
        harness.run()
        assert harness.now == START
        assert harness.state(shop.Order, "42").handled_at == [START.isoformat()]

    def test_timeouts_are_shown(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        (timeout,) = harness.timeouts
        assert timeout == ("order", "42", "reminder", "order.remind", START + 5 * DAY)

    def test_timeout_comes_when_it_is_due(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        harness.advance(5 * DAY - SECOND)
        harness.assert_state(shop.Order, "42")
        harness.advance(DAY)
        harness.assert_completed(shop.Order, "42", by=shop.remind)
        harness.assert_sent(shop.mail, "42", times=1)
        assert harness.now == START + 6 * DAY - SECOND

    def test_what_falls_due_on_the_way_comes_in_its_order_and_at_its_time(self, harness: SagaHarness, shop: Any) -> None:
        shop.charge.apply_async(("b",), countdown=2)
        shop.charge.apply_async(("a",), countdown=1)
        shop.charge.apply_async(("c",), eta=START + 3 * SECOND)
        harness.advance(2 * SECOND)
        assert shop.ran == ["charge a", "charge b"]
        harness.advance(DAY)
        assert shop.ran[-1] == "charge c"

    def test_wait_delivers_nothing(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        harness.wait()
        assert harness.now == START + 5 * DAY
        assert [message.task for message in harness.pending] == ["order.remind"]
        harness.wait(DAY)
        assert harness.now == START + 6 * DAY
        harness.deliver()
        harness.assert_completed(shop.Order, "42")

    def test_begins_when_the_test_says(self, shop: Any) -> None:
        now = datetime(2000, 2, 29, tzinfo=UTC)
        with SagaHarness(shop.app, now=now) as harness:
            harness.send(shop.place, "42")
            harness.run()
            assert harness.state(shop.Order, "42").handled_at == [now.isoformat()]

    def test_begins_at_an_aware_time(self) -> None:
        with pytest.raises(ValueError, match="names no time zone"):
            SagaHarness(now=datetime(2000, 2, 29))

    def test_moves_by_milliseconds(self, harness: SagaHarness, shop: Any) -> None:
        for ms in range(1000, 1200):
            before = harness.now
            harness.advance(timedelta(milliseconds=ms))
            assert harness.now - before == timedelta(milliseconds=ms)
        harness.advance(0.25)
        assert harness.now - before == timedelta(milliseconds=ms + 250)
        shop.charge.apply_async(("a",), eta=harness.now + timedelta(microseconds=1_000_123))
        harness.wait()
        assert harness.run() == 1

    def test_journal_is_forgotten_if_the_settings_say_so(self, shop: Any) -> None:
        shop.app.conf.saga_journal_retention = 3600
        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "42")
            harness.run()
            harness.advance(DAY)
            assert harness.journal(shop.Order, "42") == []

    def test_goes_forward(self, harness: SagaHarness) -> None:
        for move in (harness.advance, harness.wait):
            with pytest.raises(ValueError, match="time goes forward"):
                move(-SECOND)

    def test_journal_is_remembered_for_years(self, harness: SagaHarness, shop: Any) -> None:
        sent = harness.send(shop.place, "42")
        for _ in range(3):  # the relay purges now and then
            harness.send(shop.place, "43")
            harness.advance(2000 * DAY)
        harness.deliver(sent)
        assert len(harness.journal(shop.Order, "42")) == 3


class TestAround:
    def test_gather(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.send(shop.compare, "42")
        harness.run()
        harness.assert_state(shop.Order, "42", problem="{0: 97, 1: 98} [] []")

    def test_gather_whose_time_is_over(self, harness: SagaHarness, shop: Any) -> None:
        harness.answer(shop.quote, lambda name: 7 if name == "a" else 8)
        harness.send(shop.place, "42")
        harness.send(shop.compare, "42")
        harness.deliver(shop.place)
        harness.deliver(shop.compare)
        harness.deliver(shop.quote)
        harness.deliver(shop.quote, silent=True)
        harness.run()
        harness.advance(HOUR)
        harness.assert_state(shop.Order, "42", problem="{0: 7} [] [1]")

    def test_child_saga_replies_a_day_later(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.send(shop.bill, "42")
        harness.hold("celery_sagas.publish")
        harness.run()
        harness.assert_state(shop.Order, "42", problem="")
        harness.advance(DAY)
        harness.assert_state(shop.Order, "42", problem="i-42")

    def test_aggregator_flushes_by_size_and_by_time(self, harness: SagaHarness, shop: Any) -> None:
        for kwh in (1, 2, 3, 4):
            harness.send(shop.readings, shop.Reading(meter="m", kwh=kwh))
        harness.run()
        assert shop.flushed == [[1, 2, 3]]
        harness.advance(4 * SECOND)
        assert len(shop.flushed) == 1
        harness.advance(SECOND)
        assert shop.flushed[1:] == [[4]]

    def test_aggregator_sends_with_the_removal_of_its_items(self, harness: SagaHarness, shop: Any) -> None:
        """At once, and later."""
        for _ in range(2):
            shop.bills.add(shop.Paid(order_id="42"))
        harness.run()
        harness.assert_state(shop.Invoice, "42", sent=2)
        assert shop.ran == []
        harness.advance(timedelta(hours=1))
        assert shop.ran == ["mail 42"]

    def test_rejected_item_is_a_dead_letter(self, harness: SagaHarness, shop: Any) -> None:
        shop.readings.add(shop.Reading(meter="m", kwh=-1))
        harness.advance(5 * SECOND)
        (dead,) = harness.dead
        assert (dead.error, dead.text) == ("ItemRejected", "below zero")

    def test_step_that_fails_is_a_dead_letter(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.delivered, "1Z")
        harness.run()
        (dead,) = harness.dead
        assert (dead.task, dead.error) == ("order.delivered", "SagaNotFound")
        assert "kept as a dead letter" in harness.timeline()

    def test_step_that_raises_is_retried_as_time_passes(self, shop: Any) -> None:
        shop.app.conf.saga_step_retries = {"times": 3, "first": 1, "factor": 5}
        errors = [ValueError("not yet"), KeyError("nor now")]

        @shop.Order.handles
        def pack(order: shop.Order, order_id: str) -> None:
            order.tracking = "1Z"
            if errors:
                raise errors.pop(0)

        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "42")
            harness.run()
            harness.send(pack, "42")
            assert harness.run() == 1
            assert not harness.is_quiet
            assert harness.advance(SECOND) == 1
            assert harness.state(shop.Order, "42").tracking is None
            with pytest.raises(ScenarioError, match=r"order.pack\('42'\) waits"):
                harness.assert_done()
            assert harness.advance(5 * SECOND) == 1
            harness.assert_state(shop.Order, "42", tracking="1Z")
            harness.assert_sent(pack, "42", times=1)
            assert [step for step in steps(harness, shop.Order, "42") if "pack" in step] == ["pack handled"]
            assert "is retried: Retry in 1.0s: ValueError('not yet')" in harness.timeline()
            assert harness.dead == []

    def test_step_that_always_raises(self, shop: Any) -> None:
        shop.app.conf.saga_step_retries = {"times": 3, "first": 1, "factor": 5}

        @shop.Order.starts
        def pack(order: shop.Order, order_id: str) -> None:
            raise ValueError("never")

        with SagaHarness(shop.app) as harness:
            harness.send(pack, "42")
            assert harness.run() == 1
            assert harness.advance(30 * SECOND) == 2
            assert harness.dead == []
            assert harness.advance(SECOND) == 1
            assert [dead.text for dead in harness.dead] == ["never"]
            assert harness.is_quiet

    def test_pause_of_a_day(self, shop: Any) -> None:
        shop.app.conf.saga_step_retries = {"times": 1, "first": DAY, "most": DAY}
        errors = [ValueError("not today")]

        @shop.Order.starts
        def pack(order: shop.Order, order_id: str) -> None:
            if errors:
                raise errors.pop(0)

        with SagaHarness(shop.app) as harness:
            harness.send(pack, "42")
            harness.advance(DAY - SECOND)
            assert harness.state(shop.Order, "42") is None
            harness.advance(SECOND)
            harness.assert_state(shop.Order, "42")
            harness.assert_sent(pack, "42", times=1)

    @pytest.mark.parametrize("is_once", [True, False])
    def test_step_that_is_to_fail_fails_for_good(self, shop: Any, is_once: bool) -> None:
        shop.app.conf.saga_step_retries = {"times": 3, "first": 1, "factor": 5}
        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "42")
            if is_once:
                harness.deliver(shop.place, fail=ValueError)
            else:
                harness.fail(shop.place, ValueError)
                harness.run()
            assert [dead.error for dead in harness.dead] == ["ValueError"]
            assert harness.is_quiet

    def test_alternate_key(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.handles
        def ship(order: shop.Order, order_id: str, tracking: str) -> None:
            order.tracking = tracking

        harness.send(shop.place, "42")
        harness.send(ship, "42", "1Z")
        harness.run()
        assert harness.state(shop.Order, tracking="1Z").order_id == "42"
        harness.send(shop.delivered, "1Z")
        harness.run()
        harness.assert_completed(shop.Order, "42", by=shop.delivered)


class TestCrash:
    @pytest.mark.parametrize("point", POINTS)
    def test_step_has_its_effect_once(self, harness: SagaHarness, shop: Any, point: Any) -> None:
        sent = harness.send(shop.place, "42")
        harness.deliver(crash=point)
        assert harness.pending[-1] is sent
        assert (harness.state(shop.Order, "42") is None) == (point in ("before_find", "after_handler"))
        harness.run()
        harness.advance(2 * timedelta(minutes=1))
        assert steps(harness, shop.Order, "42") == ["place started", "charged handled"]
        harness.assert_state(shop.Order, "42", receipt="r-42")
        assert f"worker killed {point.replace('_', ' ')}" in harness.timeline(shop.Order, "42")

    def test_process_that_is_killed_before_it_confirms_publishes_twice(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.deliver(crash="after_publishing")
        harness.advance(timedelta(minutes=1))
        assert shop.ran == ["charge 42"] * 2
        assert len({sent.id for sent in harness.assert_sent(shop.charge, times=2)}) == 1

    @pytest.mark.parametrize(("point", "runs"), [("before_find", 1), ("after_handler", 2), ("before_acknowledgement", 2)])
    def test_plain_task_runs_again(self, harness: SagaHarness, shop: Any, point: Any, runs: int) -> None:
        harness.send(shop.place, "42")
        harness.deliver()
        harness.deliver(shop.charge, crash=point)
        harness.run()
        assert len(shop.ran) == runs
        assert steps(harness, shop.Order, "42") == ["place started", "charged handled"]

    def test_plain_task_that_is_acknowledged_early_is_lost(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.mail, "42")
        harness.deliver(crash="before_find")
        assert harness.is_quiet
        assert shop.ran == []
        assert "acknowledged early: lost" in harness.timeline()

    def test_flush_that_was_killed_is_done_again(self, harness: SagaHarness, shop: Any) -> None:
        for kwh in (1, 2, 3):
            harness.send(shop.readings, shop.Reading(meter="m", kwh=kwh))
        for _ in range(3):
            harness.deliver()
        harness.deliver(crash="after_handler")
        assert shop.flushed == [[1, 2, 3]]  # outside of the backend
        harness.advance(5 * timedelta(minutes=1))
        assert shop.flushed == [[1, 2, 3]] * 2
        assert harness.is_quiet

    @pytest.mark.parametrize("point", POINTS)
    def test_what_a_batch_sends_is_handled_once(self, harness: SagaHarness, shop: Any, point: Any) -> None:
        """Wherever the process ends that flushes it."""
        for _ in range(2):
            harness.send(shop.bills, shop.Paid(order_id="42"))
            harness.deliver()
        harness.deliver(crash=point)
        harness.advance(DAY)
        harness.assert_state(shop.Invoice, "42", sent=2)
        assert shop.ran == ["mail 42"]
        assert harness.is_quiet

    @pytest.mark.parametrize("point", POINTS)
    @pytest.mark.parametrize("nth", range(12))
    def test_no_kill_makes_a_dead_letter(self, harness: SagaHarness, shop: Any, point: Any, nth: int) -> None:
        """Of any of the messages to steps, plain tasks, gathers, events and aggregators."""
        harness.send(shop.place, "42")
        harness.send(shop.readings, shop.Reading(meter="m", kwh=1))
        harness.send(shop.compare, "42")
        harness.send(shop.bill, "42")
        for _ in range(nth):
            harness.deliver()
        harness.deliver(crash=point)
        harness.advance(DAY)
        assert harness.dead == []
        assert sum(map(len, shop.flushed)) in (1, 2)
        harness.assert_state(shop.Order, "42", receipt="r-42")
        assert steps(harness, shop.Invoice, "42") == ["on_paid started"]

    @pytest.mark.parametrize("point", ["before_find", "after_handler"])
    def test_item_that_a_killed_process_has_not_stored(self, harness: SagaHarness, shop: Any, point: Any) -> None:
        harness.send(shop.readings, shop.Reading(meter="m", kwh=1))
        harness.deliver(crash=point)
        assert shop.readings.count() == 0
        assert f"worker killed {point.replace('_', ' ')}" in harness.timeline()
        harness.run()
        assert shop.readings.count() == 1

    def test_unknown_point(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        with pytest.raises(ValueError, match=r"a process can be killed at before_find, .*, not 'sometime'"):
            harness.deliver(crash="sometime")  # type: ignore[arg-type]
        assert len(harness.pending) == 1


class TestMistakes:
    def test_step_that_publishes_past_its_commit(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.handles
        def hasty(order: shop.Order, order_id: str) -> None:
            shop.mail.delay(order_id)

        harness.send(shop.place, "42")
        harness.run()
        harness.send(hasty, "42")
        with pytest.raises(ScenarioError, match=r"order\.hasty publishes .*mail itself.*Use send\(\)") as caught:
            harness.run()
        assert "order.hasty('42')" in str(caught.value)

    def test_step_may_publish_past_its_commit_if_the_settings_say_so(self, harness: SagaHarness, shop: Any) -> None:
        shop.app.conf.saga_direct_publish = "allow"

        @shop.Order.starts
        def hasty(order: shop.Order, order_id: str) -> None:
            shop.mail.delay(order_id)

        harness.send(hasty, "42")
        harness.run()
        assert shop.ran == ["mail 42"]

    def test_plain_task_may_publish(self, harness: SagaHarness, shop: Any) -> None:
        @shop.app.task
        def gate(order_id: str) -> None:
            shop.place.delay(order_id)

        harness.send(gate, "42")
        harness.run()
        harness.assert_state(shop.Order, "42")

    def test_scenario_without_an_end(self, shop: Any) -> None:
        @shop.app.task
        def again(count: int) -> None:
            again.delay(count + 1)

        with SagaHarness(shop.app, most=50) as harness:
            harness.send(again, 0)
            with pytest.raises(ScenarioError, match=r"it does not end: 50 messages[\s\S]*again\(49\)"):
                harness.run()
            with pytest.raises(ScenarioError, match="it does not end"):
                harness.advance(DAY)

    def test_message_that_is_delivered_within_another(self, harness: SagaHarness, shop: Any) -> None:
        harness.answer(shop.charge, lambda order_id: harness.run())
        harness.send(shop.place, "42")
        harness.deliver()
        harness.send(shop.mail, "42")
        harness.deliver(shop.charge)
        assert "cannot be delivered while another message is" in harness.timeline()

    def test_result_that_is_waited_for_before_its_message_is_delivered(self, harness: SagaHarness, shop: Any) -> None:
        result = shop.charge.delay("42")
        with pytest.raises(ScenarioError, match="nothing delivers the message of"):
            result.get()
        harness.run()
        assert result.get() == "r-42"

    def test_step_that_publishes_twice_is_blamed_once(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.starts
        def hasty(order: shop.Order, order_id: str) -> None:
            shop.mail.delay(order_id)
            shop.mail.delay(order_id)

        harness.send(hasty, "42")
        with pytest.raises(ScenarioError):
            harness.run()
        harness.run()

    def test_harness_that_is_not_open(self, shop: Any) -> None:
        harness = SagaHarness(shop.app)
        for _ in range(2):
            for act in (
                harness.run,
                harness.deliver,
                harness.wait,
                lambda: harness.send(shop.place, "42"),
                lambda: harness.advance(1),
            ):
                with pytest.raises(MisuseError, match="a SagaHarness is not open"):
                    act()
            with harness:
                pass

    def test_arguments_of_other_types(self, harness: SagaHarness, shop: Any) -> None:
        wrong: Any = "wrong"
        for call in (
            lambda: SagaHarness(wrong),
            lambda: SagaHarness(now=wrong),
            lambda: harness.advance(wrong),
            lambda: harness.state(wrong, "42"),
            lambda: harness.fail(shop.charge, wrong),
            lambda: harness.assert_state(shop.Order),
            lambda: harness.assert_sent("shop.tpyo", times=0),
        ):
            with pytest.raises(TypeError):
                call()

    def test_content_that_the_app_does_not_accept(self, harness: SagaHarness, shop: Any) -> None:
        shop.mail.apply_async(("42",), serializer="pickle")
        with pytest.raises(ContentDisallowed):
            harness.run()

    def test_no_such_message(self, harness: SagaHarness, shop: Any) -> None:
        with pytest.raises(ScenarioError, match="no message is due; there are none"):
            harness.deliver()
        sent = harness.send(shop.place, "42")
        with pytest.raises(ScenarioError, match=r"no message waits for order\.cancel; there are order\.place\('42'\)"):
            harness.deliver(shop.cancel)
        harness.drop(sent)
        with pytest.raises(ScenarioError, match="does not wait"):
            harness.drop(sent)

    def test_abstract_saga(self, harness: SagaHarness) -> None:
        from celery_sagas import Saga

        with pytest.raises(TypeError, match="Saga is abstract"):
            harness.state(Saga, "42")

    def test_step_that_is_called_inside_a_step(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.starts
        def nested(order: shop.Order, order_id: str) -> None:
            shop.place("43")

        harness.send(nested, "42")
        harness.run()
        assert harness.dead[0].error == MisuseError.__name__


class TestAssertions:
    def test_state(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        with pytest.raises(ScenarioError) as caught:
            harness.assert_state(shop.Order, "42", receipt="r-43", problem="")
        text = str(caught.value)
        assert text.startswith("Order '42': receipt is 'r-42', not 'r-43'\nOrder '42': version 2\n")
        assert "+0:00:00  order.place('42')" in text
        assert "started, version 1; sends" in text
        assert "returned 'r-42'" in text
        assert "handled, version 2" in text

    def test_field_that_the_saga_does_not_have(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        with pytest.raises(TypeError, match="Order has no field reciept"):
            harness.assert_state(shop.Order, "42", reciept=None)

    def test_instance_that_is_missing(self, harness: SagaHarness, shop: Any) -> None:
        with pytest.raises(ScenarioError, match=r"there is no Order '42'\nOrder '42': never existed\n  nothing has happened"):
            harness.assert_state(shop.Order, "42")

    def test_completed(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        with pytest.raises(ScenarioError, match="Order '42' has not completed"):
            harness.assert_completed(shop.Order, "42")
        harness.send(shop.cancel, "42")
        harness.run()
        assert harness.assert_completed(shop.Order, "42").version == 3
        with pytest.raises(ScenarioError, match=r"was completed by order\.cancel, not by order\.remind"):
            harness.assert_completed(shop.Order, "42", by=shop.remind)
        harness.send(shop.place, "42")
        harness.run()
        with pytest.raises(ScenarioError, match="has not completed"):
            harness.assert_completed(shop.Order, "42")

    def test_sent(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, order_id="42")
        assert len(harness.assert_sent(shop.place, order_id="42")) == 1
        assert len(harness.assert_sent(shop.place, "42")) == 1  # however it was given
        harness.assert_sent(shop.place, order_id="43", times=0)
        harness.assert_sent(shop.charge, times=0)
        with pytest.raises(ScenarioError, match=r"charge\('42'\) was sent 0 times"):
            harness.assert_sent(shop.charge, "42")
        with pytest.raises(ScenarioError, match=r"order\.place\(\) was sent 1 times, not 2 times"):
            harness.assert_sent(shop.place, times=2)

    def test_done(self, harness: SagaHarness, shop: Any) -> None:
        harness.assert_done()
        harness.send(shop.place, "42")
        harness.run()
        harness.send(shop.mail, "42")
        harness.send(shop.delivered, "1Z")
        harness.deliver(shop.delivered)
        with pytest.raises(ScenarioError) as caught:
            harness.assert_done()
        text = str(caught.value)
        assert "mail('42') waits" in text
        assert "order '42' has the timeout 'reminder', due at 2040-01-06 00:00:00+00:00" in text
        assert "order.delivered has failed: SagaNotFound" in text

    def test_timeline_of_one_instance_leaves_the_others_out(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.send(shop.place, "43")
        harness.run()
        assert "'43'" not in harness.timeline(shop.Order, "42")
        assert "'43'" in harness.timeline()


class _Touchy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("working outside of a request")

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


_TOUCHY = _Touchy()


class TestRealTime:
    def test_handler_that_reads_it_is_warned_of_with_its_line(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.starts
        def hurried(order: shop.Order, order_id: str) -> None:
            order.problem = str(datetime.now(UTC))

        harness.send(hurried, "42")
        with pytest.warns(RealTimeWarning, match=r"hurried calls datetime\.now\(UTC\).*Use order\.saga\.now") as warned:
            harness.run()
        assert warned[0].filename == __file__
        with open(__file__) as source:
            assert "datetime.now(UTC))" in source.read().splitlines()[warned[0].lineno - 1]

    def test_other_ways_to_read_it(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.starts
        def hurried(order: shop.Order, order_id: str) -> None:
            order.problem = f"{time.time()} {datetime.today()} {time.time_ns()}"

        harness.send(hurried, "42")
        with pytest.warns(RealTimeWarning) as warned:
            harness.run()
        assert len(warned) == 3

    def test_globals_of_a_handler_are_not_touched(self, harness: SagaHarness, shop: Any) -> None:
        """A proxy of a web framework raises where no request is, an array does not compare."""

        @shop.Order.starts
        def careful(order: shop.Order, order_id: str) -> None:
            if order_id != "42":
                _TOUCHY.now()
                later()

        harness.send(careful, "42")
        harness.run()
        harness.assert_state(shop.Order, "42")

        def later() -> None: ...

    def test_handler_that_reads_the_virtual_time_is_not_warned_of(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()  # warnings are errors here


class TestWorld:
    def test_nothing_leaves_the_process(self, shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def connect(*_: object) -> None:
            raise AssertionError("a connection was made")

        monkeypatch.setattr(socket.socket, "connect", connect)
        shop.app.conf.update(
            broker_url="redis://127.0.0.1:1/0", result_backend="redis://127.0.0.1:1/0", saga_backend="redis://nowhere"
        )
        with SagaHarness(shop.app) as harness:
            shop.charge.delay("1")
            harness.send(shop.place, "42")
            harness.advance(10 * DAY)
            harness.assert_completed(shop.Order, "42")

    def test_failure_outside_of_a_step_leaves_the_real_backend_alone(self, new_app: NewApp, tmp_path: Path) -> None:
        class Base(Task):  # type: ignore[type-arg]
            def before_start(self, *_: object) -> None:
                raise KeyError("outside of run")

        url = f"sqlite:///{tmp_path / 'real.sqlite3'}"
        shop = open_shop(new_app(task_cls=Base))
        shop.app.conf.saga_backend = url
        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "1")
            harness.run()
            harness.send(shop.place, "2")
            harness.deliver(crash="before_find")
            harness.run()
            assert len(harness.dead) == 2
        assert not (tmp_path / "real.sqlite3").exists()

    def test_app_that_is_made_beside_the_current_one(self, new_app: NewApp) -> None:
        new_app()
        with SagaHarness() as harness:
            shop = open_shop(new_app())
            harness.send(shop.place, "42")
            harness.deliver(crash="after_commit")
            shop.mail.apply_async(("42",), countdown=5)
            harness.advance(DAY)
            harness.assert_state(shop.Order, "42", receipt="r-42")
            assert "mail 42" in shop.ran

    def test_results_do_not_leave_the_harness(self, shop: Any) -> None:
        for _ in range(2):
            with SagaHarness(shop.app) as harness:
                result = shop.charge.apply_async(("42",), task_id="fixed")
                assert result.state == "PENDING"
                harness.run()
                assert result.state == "SUCCESS"

    def test_eager_app_waits_for_the_test(self, new_app: NewApp) -> None:
        shop = open_shop(new_app(eager=True))
        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "42")
            assert shop.Order.find("42") is None
            harness.run()
            harness.assert_state(shop.Order, "42", receipt="r-42")
        assert shop.app.conf.task_always_eager

    def test_real_world_comes_back(self, shop: Any) -> None:
        app, runtime, results = shop.app, runtime_of(shop.app), shop.app.backend
        pool = app.amqp.producer_pool
        with SagaHarness(app) as harness:
            harness.send(shop.place, "42")
            harness.run()
            assert runtime_of(app) is not runtime
            assert app.now().year == clock.now().year == 2040
        assert runtime_of(app) is runtime
        assert app.backend is results
        assert app.amqp.producer_pool is pool
        assert app.now().year != 2040
        assert abs(clock.time_s() - time.time()) < 60
        assert shop.Order.find("42") is None
        assert shop.charge.__trace__ is None  # Celery's tracer knows the backend for results

    def test_real_world_comes_back_after_an_error(self, shop: Any) -> None:
        with pytest.raises(KeyError), SagaHarness(shop.app):
            raise KeyError("of the test")
        assert clock.now().year != 2040

    def test_one_harness_within_another(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        with SagaHarness(shop.app) as inner:
            assert (inner.pending, inner.now) == ([], START)
            inner.send(shop.place, "43")
            inner.advance(DAY)
        harness.advance(HOUR)
        assert shop.app.now().timestamp() == (START + HOUR).timestamp()
        assert harness.state(shop.Order, "43") is None
        harness.assert_state(shop.Order, "42", receipt="r-42")

    def test_app_that_is_not_the_current_one(self, new_app: NewApp) -> None:
        shop, other = open_shop(new_app()), new_app()
        assert shop.app is not other
        with SagaHarness(shop.app) as harness:
            harness.send(shop.place, "42")
            harness.run()
            harness.assert_state(shop.Order, "42", receipt="r-42")
        from celery import current_app

        assert current_app._get_current_object() is other

    def test_app_that_is_made_in_the_test(self, definitions: None) -> None:
        with SagaHarness() as harness:
            shop = open_shop(Celery("made later", broker="redis://127.0.0.1:1/0", result_backend="redis://127.0.0.1:1/0"))
            shop.place.delay("42")
            harness.run()
            harness.assert_state(shop.Order, "42", receipt="r-42")
        shop.app.close()

    def test_no_app_yet(self) -> None:
        with SagaHarness() as harness:
            assert harness.run() == 0
            assert harness.is_quiet

    def test_wait_of_the_saga_works(self, harness: SagaHarness, shop: Any) -> None:
        harness.send(shop.place, "42")
        harness.run()
        assert shop.Order.wait("42", until=lambda order: order.receipt, timeout=0).receipt == "r-42"


class TestMissingInstances:
    def test_function_of_the_saga(self, harness: SagaHarness, shop: Any) -> None:
        @shop.Order.if_missing
        def ask(missing: Any) -> None:
            missing.send(shop.mail.s(missing.arguments["order_id"]))

        harness.send(shop.bill, "42")
        harness.run()

        assert [message.task for message in harness.sent] == [shop.bill.name, shop.mail.name]
        assert steps(harness, shop.Order, "42") == ["bill missing"]
