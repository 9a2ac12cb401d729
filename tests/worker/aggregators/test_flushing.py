"""The task that flushes a group: what its function's errors mean, and when it runs again."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, current_app
from celery.exceptions import Ignore, Reject, Retry
from celery.utils.time import maybe_make_aware
from celery.worker.request import Request

from celery_sagas import Batch, aggregator, signals
from celery_sagas.errors import LeaseLost, PublishError, StoreUnavailable
from celery_sagas.testing.clock import Clock
from celery_sagas.worker.failures.requests import FailingRequest, keeping_failures
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, NewApp, Worker, backend_of
from tests.worker.aggregators.collectors import Boom, Collected, Reading, collector, counts, ids, rejected

D1, D2 = Reading(device="d1"), Reading(device="d2")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The store's clock: a worker of these tests runs messages whatever their eta, and a group pauses until then."""
    clock = Clock(time.time_ns() // 1_000_000)
    monkeypatch.setattr("celery_sagas.stores.memory.backend.wall_clock", clock)
    monkeypatch.setattr(Celery, "now", lambda _: datetime.fromtimestamp(clock.now / 1000, UTC))
    return clock


def filled(collected: Collected | None = None, **options: Any) -> tuple[Any, Collected]:
    """Define an aggregator, and add two items, which fire its trigger."""
    collect, collected = collector(**options)
    collect.add_many([D1, D2], ids=["a", "b"])
    return collect, collected


def raising(error: BaseException) -> Any:
    """Return what raises an error, whatever it is given."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def delay_of(message: Delivered) -> float:
    """Return the seconds until a message is due, as Celery counts them."""
    return (maybe_make_aware(datetime.fromisoformat(message.headers["eta"])) - current_app.now()).total_seconds()


def states(app: Celery) -> set[tuple[str, int]]:
    """Return the states of what is buffered, and how often it has failed."""
    return {(item.state, item.attempts) for item in runtime_of(app).batches.buffers.read("shop.collect", "", 100)}


class TestGroups:
    """One message may be for several groups, as those of a relay are that finds many of them due."""

    @pytest.fixture
    def collected(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Collected:
        """What is given to the function of an aggregator with three groups that are due, whose messages are not there yet."""
        monkeypatch.setattr("celery_sagas.worker.aggregators.tasks._TOGETHER_S", math.inf)  # however busy the machine is
        collect, collected = collector(group_by="device")
        for device in ("d1", "d2", "d3"):
            collect.add_many([Reading(device=device)] * 2)
        for delivered in worker.waiting():
            assert len(delivered.args) == 1
        worker.app.control.purge()
        return collected

    def flush(self, worker: Worker, *groups: str) -> Delivered:
        worker.app.tasks["shop.collect.flush"].apply_async(groups)
        return worker.one()

    def test_are_flushed_one_after_the_other(self, worker: Worker, collected: Collected) -> None:
        assert self.flush(worker, "d1", "d2", "d3").error is None

        assert [batch.group for batch in collected.batches] == ["d1", "d2", "d3"]
        assert counts(worker.app) == (0, 0, 0)
        assert worker.waiting() == []

    def test_one_that_has_nothing_to_flush_is_passed_over(self, worker: Worker, collected: Collected) -> None:
        self.flush(worker, "unknown", "d2")

        assert [batch.group for batch in collected.batches] == ["d2"]

    def test_one_that_fails_is_flushed_again_by_a_message_of_its_own(
        self, worker: Worker, clock: Clock, collected: Collected, caplog: pytest.LogCaptureFixture
    ) -> None:
        collected.work = lambda batch: raising(Boom("away"))() if batch.group == "d2" else None

        assert self.flush(worker, "d1", "d2", "d3").error is None

        assert "flushes the group 'd2' again" in caplog.text
        assert "Boom" in caplog.text
        assert (ids(worker.app, "d1"), len(ids(worker.app, "d2")), ids(worker.app, "d3")) == ([], 2, [])
        (again,) = worker.waiting()
        assert again.args == ["d2"]
        assert 0 < delay_of(again) <= 1
        collected.work = lambda batch: None
        clock.advance(1_000)
        worker.run()
        assert counts(worker.app) == (0, 0, 0)

    @pytest.mark.parametrize("error", [Reject("later", requeue=True), Reject("never")])
    def test_one_whose_message_is_rejected_is_flushed_again(self, worker: Worker, collected: Collected, error: Exception) -> None:
        collected.work = lambda batch: raising(error)() if batch.group == "d1" else None

        assert self.flush(worker, "d1", "d2").fate == "acked"

        assert [again.args for again in worker.waiting()] == [["d1"]]

    def test_one_that_is_ignored_is_done(self, worker: Worker, collected: Collected) -> None:
        collected.work = raising(Ignore())

        self.flush(worker, "d1", "d2", "d3")

        assert counts(worker.app) == (0, 0, 0)
        assert worker.waiting() == []

    def test_those_that_are_not_begun_in_time_are_left_to_two_messages(
        self, worker: Worker, collected: Collected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two processes go on with them."""
        with monkeypatch.context() as patch:
            patch.setattr("celery_sagas.worker.aggregators.tasks._TOGETHER_S", 0.0)
            self.flush(worker, "d1", "d2", "d3")

        assert collected.batches == []
        assert [again.args for again in worker.waiting()] == [["d1", "d2"], ["d3"]]
        worker.run()
        assert counts(worker.app) == (0, 0, 0)

    def test_a_broker_that_is_away_is_asked_once_for_those_that_are_not_begun_in_time(
        self, worker: Worker, collected: Collected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[Any] = []

        def publish(runtime: Any, definition: Any, groups: Any, delay_s: float = 0.0) -> None:
            asked.append(groups)
            raise PublishError("away", connection=True)

        monkeypatch.setattr("celery_sagas.worker.aggregators.tasks._TOGETHER_S", 0.0)
        monkeypatch.setattr("celery_sagas.worker.aggregators.flushes.publish_flush", publish)
        self.flush(worker, "d1", "d2", "d3")

        assert asked == [["d1", "d2"]]

    def test_an_error_of_the_library_leaves_the_others_to_other_messages(
        self, worker: Worker, collected: Collected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runtime_of(worker.app).batches.aggregates, "claim", raising(Boom("unexpected")))

        assert isinstance(self.flush(worker, "d1", "d2", "d3").error, Boom)

        assert [again.args for again in worker.waiting()] == [["d2"], ["d3"]]

    def test_a_function_that_retries_retries_its_group_alone(self, worker: Worker) -> None:
        @aggregator(size=2, bind=True, name="shop.again", group_by=str)
        def again(task: Any, batch: Batch[int]) -> None:
            raise task.retry(countdown=0)

        again.add_many([1, 1, 2, 2])
        worker.app.control.purge()
        worker.app.tasks["shop.again.flush"].apply_async(("1", "2"))
        assert worker.one().error is None

        assert [message.args for message in worker.waiting()] == [["1"], ["2"]]

    def test_none_is_lost_while_the_store_is_away(
        self, worker: Worker, collected: Collected, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The whole message comes again: those that are flushed have nothing to flush then."""
        store = runtime_of(worker.app).batches.aggregates
        with monkeypatch.context() as patch:
            claim = store.claim
            patch.setattr(
                store,
                "claim",
                lambda rules, group, token: (
                    raising(StoreUnavailable("memory://", "away"))() if group == "d2" else claim(rules, group, token)
                ),
            )
            self.flush(worker, "d1", "d2", "d3")
        assert [batch.group for batch in collected.batches] == ["d1"]
        worker.run()
        assert counts(worker.app) == (0, 0, 0)
        assert [batch.group for batch in collected.batches] == ["d1", "d2", "d3"]


class TestFunction:
    """What it returns, and what it raises."""

    def test_result(self, app: Celery, worker: Worker) -> None:
        _, collected = filled(ignore_result=False)
        collected.work = len
        sent = worker.waiting()[0].id
        worker.run()

        assert app.AsyncResult(sent).get() == 2

    def test_signal_and_log(self, app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "celery_sagas")
        seen: list[Any] = []

        def note(sender: Any, flushed: Any, **_: Any) -> None:
            seen.append((sender.name, flushed))

        signals.batch_flushed.connect(note)
        filled()
        worker.run()

        ((sender, flushed),) = seen
        assert (sender, flushed.name, flushed.group, flushed.reason, flushed.items) == (
            "shop.collect.flush",
            "shop.collect",
            "",
            "size",
            2,
        )
        assert "flushed 2 items of the group '' (size), 0 rejected, 0 unresolved" in caplog.text

    def test_error_is_retried_with_longer_and_longer_pauses(self, app: Celery, worker: Worker, clock: Clock) -> None:
        _, collected = filled()
        collected.work = raising(Boom("away"))
        delays = []
        for retries in range(4):
            assert isinstance(worker.one().error, Retry)
            assert states(app) == {("free", retries + 1)}
            (again,) = worker.waiting()
            assert again.headers["retries"] == retries + 1
            delays.append(round(delay_of(again)))
            clock.advance(delays[-1] * 1000)

        assert delays == [1, 2, 4, 8]
        collected.work = lambda batch: None
        worker.run()
        assert counts(app).buffered == 0
        assert backend_of(app).dead.list(10) == []

    def test_what_is_no_exception_is_retried_as_one(self, app: Celery, worker: Worker) -> None:
        _, collected = filled()
        collected.work = raising(asyncio.CancelledError())

        assert isinstance(worker.one().error, Retry)

        assert states(app) == {("free", 1)}

    @pytest.mark.parametrize(
        ("options", "delay_s"),
        [
            ({"retry_backoff": False, "default_retry_delay": 7}, 7),
            ({"retry_backoff": 3}, 3),
            ({"retry_backoff": 100, "retry_backoff_max": 20}, 20),
        ],
    )
    def test_pauses_are_celerys_options(self, app: Celery, options: dict[str, Any], delay_s: int) -> None:
        collector(**options)

        assert app.tasks["shop.collect.flush"].delay_s(attempts=0) == delay_s

    def test_pauses_are_bounded(self, app: Celery) -> None:
        """Whatever the number of attempts."""
        collector()
        task = app.tasks["shop.collect.flush"]

        assert [task.delay_s(attempts) for attempts in (0, 5, 100, 10_000)] == [1, 30, 30, 30]

    def test_pauses_may_be_random(self, app: Celery) -> None:
        collector(retry_jitter=True)
        task = app.tasks["shop.collect.flush"]

        delays = [task.delay_s(attempts=5) for _ in range(100)]
        assert len(set(delays)) > 1
        assert all(0 <= delay <= 30 for delay in delays)

    @pytest.mark.parametrize("kind", ["raises", "retries"])
    def test_one_call_for_each_pause_although_many_batches_wait(
        self, app: Celery, worker: Worker, clock: Clock, kind: str
    ) -> None:
        """Each failure leaves the message of the next batch behind, which finds nothing, and the retry."""
        seen: list[list[str]] = []

        @aggregator(size=2, bind=True, name="shop.collect")
        def collect(self: Any, batch: Batch[int]) -> None:
            seen.append(list(batch.ids))
            raise self.retry(countdown=40) if kind == "retries" else Boom

        collect.add_many(range(8), ids="abcdefgh")
        delays = []
        for retries in range(6):
            assert isinstance(worker.one().error, Retry)
            assert len(seen) == retries + 1
            assert (worker.one().fate, len(seen)) == ("acked", retries + 1)
            (again,) = worker.waiting()
            delays.append(round(delay_of(again)))
            clock.advance(delays[-1] * 1000)

        assert seen == [["a", "b"]] * 6
        assert delays == ([40] * 6 if kind == "retries" else [1, 2, 4, 8, 16, 30])
        assert counts(app).buffered == 8

    def test_retries_end_where_they_are_bounded(self, app: Celery, worker: Worker, clock: Clock) -> None:
        """The items stay: the relay asks again, when nobody has for long enough."""
        _, collected = filled(max_retries=1)
        collected.work = raising(Boom())
        delivered = [worker.one()]
        clock.advance(1_000)
        delivered += worker.run()

        assert [type(each.error) for each in delivered] == [Retry, Boom]
        assert states(app) == {("free", 2)}

    @pytest.mark.parametrize("requeue", [False, True])
    def test_reject(self, app: Celery, worker: Worker, clock: Clock, requeue: bool) -> None:
        """The broker does with the message what the function says; the items are not to blame."""
        _, collected = filled(autoretry_for=(Exception,))
        collected.work = raising(Reject("no", requeue=requeue))

        delivered = worker.one()
        assert delivered.fate == ("requeued" if requeue else "rejected")
        assert states(app) == {("free", 0)}
        assert worker.waiting() == []
        worker.deliver_again(delivered)
        assert len(collected.batches) == 1  # a broker that delivers it again at once has nobody called

        clock.advance(1_000)
        worker.deliver_again(delivered)
        assert len(collected.batches) == 2

    def test_ignore(self, app: Celery, worker: Worker) -> None:
        """The items were seen to: it is told as when the function returns."""
        seen: list[int] = []

        def note(flushed: Any, **_: Any) -> None:
            seen.append(flushed.items)

        signals.batch_flushed.connect(note)
        _, collected = filled()
        collected.work = raising(Ignore())

        assert worker.one().fate == "acked"
        assert counts(app).buffered == 0
        assert seen == [2]

    @pytest.mark.parametrize(
        "when",
        [
            lambda now: {"countdown": 40},
            lambda now: {"eta": now + timedelta(seconds=40)},
            lambda now: {"eta": now.replace(tzinfo=None) + timedelta(seconds=40)},
        ],
        ids=["countdown", "eta", "naive eta"],
    )
    def test_retry(self, app: Celery, worker: Worker, clock: Clock, when: Callable[[datetime], dict[str, Any]]) -> None:
        """As often as it likes: nothing is counted."""
        seen: list[int] = []

        @aggregator(size=2, bind=True, name="shop.collect")
        def collect(self: Any, batch: Batch[Reading]) -> None:
            seen.append(len(batch))
            if len(seen) < 3:
                raise self.retry(**when(self.app.now()))

        collect.add_many([D1, D2])
        delivered = worker.one()
        assert isinstance(delivered.error, Retry)
        assert states(app) == {("free", 0)}
        (again,) = worker.waiting()
        assert delay_of(again) == 40
        runtime = runtime_of(app)
        due_at = runtime.batches.buffers.groups("shop.collect", 1)[0].due_at
        assert due_at - clock.now > 90_000  # the pause, and the lease
        for _ in range(2):
            clock.advance(40_000)
            worker.one()

        assert worker.waiting() == []
        assert (seen, counts(app).buffered) == ([2, 2, 2], 0)

    def test_item_that_fails_alone_becomes_a_dead_letter(
        self, new_app: NewApp, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        """And the others are tried after the pause."""
        app = new_app(saga_max_deliveries=2)
        _, collected = filled()
        worker = Worker(app)

        def work(batch: Batch[Reading]) -> None:
            if D1 in batch:
                raise Boom

        collected.work = work
        told: list[dict[str, Any]] = []

        @signals.step_failed.connect
        def tell(**facts: Any) -> None:
            told.append(facts)

        while not rejected(app):
            assert isinstance(worker.one().error, Retry)
            *_, again = worker.waiting()
            clock.advance(round(delay_of(again)) * 1000)

        (dead_letter,) = rejected(app)
        assert (dead_letter.task, dead_letter.message_id, dead_letter.error) == ("shop.collect", "a", "Boom")
        (facts,) = told
        assert (facts["sender"].name, facts["dead_letter"].id, type(facts["exception"])) == (
            "shop.collect.flush",
            dead_letter.id,
            Boom,
        )
        assert f"shop.collect[a] failed and is kept as the dead letter {dead_letter.id}: Boom" in caplog.text
        assert ids(app) == ["b"]
        worker.run()
        assert (collected.items[-1], ids(app)) == ([D2], [])


class TestMessage:
    """The message that has a group flushed."""

    def test_that_is_delivered_again_finds_nothing(self, app: Celery, worker: Worker) -> None:
        _, collected = filled()
        delivered = worker.one()

        assert worker.deliver_again(delivered).fate == "acked"
        assert len(collected.batches) == 1

    def test_store_that_is_away(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        _, collected = filled()
        with monkeypatch.context() as away:
            away.setattr(runtime_of(app).batches.aggregates, "claim", raising(StoreUnavailable("memory://", "away")))
            assert isinstance(worker.one().error, Ignore)
        worker.run()

        assert collected.items == [[D1, D2]]

    def test_lost_lease_ends_it(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        """Another flush has the items."""
        filled()
        monkeypatch.setattr(runtime_of(app).batches.aggregates, "remove", raising(LeaseLost("shop.collect", "", "t")))
        delivered = worker.one()

        assert (type(delivered.error), delivered.fate) == (LeaseLost, "acked")
        assert worker.waiting() == []

    def test_broker_that_is_away_keeps_it(
        self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch, held: list[float]
    ) -> None:
        """Celery's own ``retry()`` would lose it."""
        _, collected = filled()
        collected.work = raising(Boom())
        monkeypatch.setattr(runtime_of(app).publisher, "confirming", raising(PublishError("away", True)))
        delivered = worker.one()

        assert (type(delivered.error), delivered.fate) == (Reject, "requeued")
        assert states(app) == {("free", 1)}

    def test_becomes_no_dead_letter(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its items are still buffered, or were rejected; a dead letter of it would only say so again."""
        collector()
        settled: list[Any] = []
        monkeypatch.setattr(FailingRequest, "_settle", lambda self, error: settled.append(self))
        for name in ("shop.collect.flush", "shop.collect"):
            request = keeping_failures(Request).__new__(keeping_failures(Request))
            request._task = app.tasks[name]
            request._see_to(Boom(), may_notify=False)

        assert [request.task.name for request in settled] == ["shop.collect"]

    def test_what_one_batch_publishes_is_not_that_of_another(self, app: Celery, worker: Worker) -> None:
        """A message that is delivered again has other items: what its function adds is new, however equal."""
        totals, summed = collector(int, name="shop.totals", size=99)

        @aggregator(size=2, name="shop.collect")
        def collect(batch: Batch[Reading]) -> None:
            totals.add(5)

        collect.add_many([D1, D2])
        delivered = worker.one()
        collect.add(D1)
        runtime = runtime_of(app)
        runtime.batches.buffers.fire(runtime.rules_of(app.tasks["shop.collect"].saga_aggregator), "")
        worker.deliver_again(delivered)

        assert totals.read() == [5, 5]
        assert summed.items == []

    @pytest.mark.parametrize(
        ("of_app", "of_task", "of_call", "limit_s"),
        [(None, None, None, None), (90, None, None, 90.0), (90, 5, None, 5.0), (90, 5, 7, 7.0), (None, None, 7, 7.0)],
    )
    def test_lease_is_renewed_until_its_time_limit(
        self,
        app: Celery,
        worker: Worker,
        monkeypatch: pytest.MonkeyPatch,
        of_app: float | None,
        of_task: float | None,
        of_call: float | None,
        limit_s: float | None,
    ) -> None:
        limits: list[float | None] = []

        def renewal(renew: Any, lease_s: float, for_s: float | None, subject: str) -> Any:
            limits.append(for_s)
            return nullcontext()

        monkeypatch.setattr("celery_sagas.engine.aggregators.flush.Renewal", renewal)
        app.conf.task_time_limit = of_app
        collect, _ = collector(time_limit=of_task, size=9)
        collect.add(D1)
        task, runtime = app.tasks["shop.collect.flush"], runtime_of(app)
        runtime.batches.buffers.fire(runtime.rules_of(task.saga_aggregator), "")
        task.apply_async(("",), time_limit=of_call)
        worker.run()

        assert limits == [limit_s]
