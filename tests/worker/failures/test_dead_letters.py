"""Dead letters: what fails for good is kept before it is acknowledged."""

import asyncio
import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import redis
from celery import Celery
from celery.exceptions import (
    Ignore,
    NotRegistered,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from kombu.common import QoS
from kombu.utils.json import dumps, loads

from celery_sagas import Saga, signals
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import ReplyKind, ReturnAddress, Target
from celery_sagas.errors import InvalidMessage, PublishError, StoreUnavailable, TooManyDeliveries, UnreadableState
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker import backends
from celery_sagas.worker.failures import raised, requests
from celery_sagas.worker.failures.redelivery import HELD_S
from celery_sagas.worker.failures.requests import FailingRequest
from celery_sagas.worker.failures.unknown import KeepUnknownTasks
from celery_sagas.worker.headers import (
    ADDRESS,
    AGGREGATOR,
    CAUSATION,
    CAUSE,
    MESSAGE_ID,
    REDELIVERIES,
    STEP,
    return_address_headers,
)
from celery_sagas.worker.operators import Retried, new_id_of, retry_dead_letter
from celery_sagas.worker.process import control
from celery_sagas.worker.runtime import runtime_of, within
from tests.apps import AgainWorker, NewApp, Worker, as_tasks, backend_of, interposed
from tests.servers import unique
from tests.waiting import DEADLINE_S
from tests.worker.main_process import fail_with, fates, info_of, request_for

__all__ = ["fates"]

AWAY = StoreUnavailable("memory://", "it is away")


class Boom(Exception):
    """What a handler raises."""


def dead_letters_in(app: Celery) -> list[DeadLetter]:
    """Return the dead letters."""
    return backend_of(app).dead.list(10)


def outcomes(app: Celery) -> list[str]:
    """Return what the journal says of the order 42."""
    return [entry.outcome for entry in backend_of(app).journal.history(["order"], "42", 10)]


def failing(error: Exception) -> Callable[..., None]:
    """Return what raises an error."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def raising(error: BaseException) -> Any:
    """Define a step that raises an error."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        raise error

    return place


@pytest.fixture
def fixed() -> list[bool]:
    """Whether the handler works by now."""
    return []


@pytest.fixture
def order(app: Celery, fixed: list[bool]) -> Any:
    """A saga whose starter raises, until it is fixed."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0

    def work(order: Order, total: int) -> None:
        order.total += total
        if not fixed:
            raise Boom("it broke")

    @Order.starts
    def place(order: Order, order_id: str, total: int = 1) -> None:
        work(order, total)

    @Order.starts(autoretry_for=(Boom,), max_retries=2, default_retry_delay=0)
    def try_thrice(order: Order, order_id: str, total: int = 1) -> None:
        work(order, total)

    @Order.starts(bind=True, max_retries=1, default_retry_delay=0)
    def try_twice(self: Any, order: Order, order_id: str) -> None:
        try:
            work(order, 1)
        except Boom as exc:
            raise self.retry(exc=exc)  # noqa: B904

    return SimpleNamespace(saga=Order, place=place, try_thrice=try_thrice, try_twice=try_twice)


class TestFailures:
    """In the process that runs the task."""

    def test_dead_letter(self, app: Celery, worker: Worker, order: Any) -> None:
        order.place.apply_async(("42",), {"total": 5}, task_id="m1", headers={"tenant": "t"}, priority=3)

        delivered = worker.one()

        assert (delivered.fate, type(delivered.error)) == ("acked", Boom)
        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.task, dead_letter.message_id, dead_letter.saga, dead_letter.key) == (
            "order.place",
            "m1",
            "order",
            "42",
        )
        assert (dead_letter.error, dead_letter.text) == ("Boom", "it broke")
        assert "in work" in dead_letter.traceback
        assert outcomes(app) == ["failed"]
        sent = loads(dead_letter.payload)
        assert (sent["task"], sent["args"], sent["kwargs"]) == ("order.place", ["42"], {"total": 5})
        assert sent["options"]["headers"]["tenant"] == "t"

    def test_former_name(self, app: Celery, worker: Worker, order: Any) -> None:
        """The journal has it where old code looks, which may get the message again; the dead letter has the present one."""

        @order.saga.starts(formerly="orders.begin")
        def begin(order: Any, order_id: str) -> None:
            raise Boom("it broke")

        app.send_task("orders.begin", ("42",), task_id="m1")
        worker.run()

        assert [dead_letter.task for dead_letter in dead_letters_in(app)] == ["order.begin"]
        entries = backend_of(app).journal.history(["order"], "42", 9)
        assert [(entry.step, entry.outcome) for entry in entries] == [("orders.begin", "failed")]

    def test_ids_that_begin_alike(self, app: Celery, worker: Worker, order: Any) -> None:
        """They are too long for any journal, and each has its dead letter."""
        for end in "12":
            order.place.apply_async((end,), task_id="x" * 255 + end)
        worker.run()

        assert sorted(loads(dead_letter.payload)["args"] for dead_letter in dead_letters_in(app)) == [["1"], ["2"]]

    def test_redelivery_does_nothing_and_is_no_success(
        self, app: Celery, worker: Worker, order: Any, fixed: list[bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its links do not follow it."""
        (order.place.si("42").set(task_id="m1", link=order.place.si("link")) | order.place.si("next")).delay()
        failed = worker.one()
        fixed.append(True)

        again = worker.deliver_again(failed)

        assert (again.fate, type(again.error)) == ("acked", Ignore)
        assert worker.waiting() == []
        assert order.saga.find("42") is None
        assert "WARNING" in caplog.text
        assert "order.place[m1] failed: order '42'" in caplog.text

    @pytest.mark.parametrize(("step", "runs"), [("try_thrice", 3), ("try_twice", 2)])
    @as_tasks
    def test_retries_come_first(self, app: Celery, worker: Worker, order: Any, step: str, runs: int) -> None:
        getattr(order, step).delay("42")
        for _ in range(runs - 1):
            assert isinstance(worker.one().error, Retry)
            assert dead_letters_in(app) == []

        assert isinstance(worker.one().error, Boom)
        assert [dead_letter.error for dead_letter in dead_letters_in(app)] == ["Boom"]
        assert worker.waiting() == []

    def test_retry_that_succeeds(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        order.try_thrice.delay("42")
        worker.one()
        fixed.append(True)
        worker.run()

        assert dead_letters_in(app) == []
        assert order.saga.find("42").total == 1

    def test_retry_that_cannot_be_published_is_kept_by_the_broker(
        self, app: Celery, worker: Worker, order: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Celery would reject it for good."""
        order.try_twice.delay("42")
        monkeypatch.setattr(app.tasks["order.try_twice"], "apply_async", failing(OSError("the broker is away")))

        delivered = worker.one()

        assert (delivered.fate, type(delivered.error)) == ("requeued", Reject)
        assert dead_letters_in(app) == []

    def test_message_that_does_not_fit(self, app: Celery, worker: Worker, order: Any) -> None:
        """It has no tombstone, and fails again, and stays one dead letter."""
        app.send_task("order.place", ["42"], {"nonsense": 1}, task_id="m1")
        failed = worker.one()

        assert (failed.fate, type(failed.error)) == ("acked", InvalidMessage)
        worker.deliver_again(failed)
        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.error, dead_letter.message_id, dead_letter.key) == ("InvalidMessage", "m1", "")
        assert loads(dead_letter.payload)["kwargs"] == {"nonsense": 1}
        assert outcomes(app) == []

    def test_message_id_of_the_producer(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        """The journal knows the message by it."""
        for _ in range(2):
            order.place.apply_async(("42",), headers={MESSAGE_ID: "mine"})
            worker.one()
            fixed.append(True)

        assert [dead_letter.message_id for dead_letter in dead_letters_in(app)] == ["mine"]
        assert order.saga.find("42") is None

    def test_message_id_that_no_store_takes(self, app: Celery, worker: Worker, order: Any) -> None:
        app.send_task("order.place", ["42"], headers={MESSAGE_ID: "\0" * 300})

        assert worker.one().fate == "acked"
        (dead_letter,) = dead_letters_in(app)
        assert dead_letter.error == "InvalidMessage"
        assert dead_letter.message_id.startswith("\\0\\0")

    @pytest.mark.parametrize("reason", [Ignore(), Reject("no"), Reject("no", requeue=True)], ids=repr)
    def test_users_own_choice(self, app: Celery, worker: Worker, reason: Exception) -> None:
        raising(reason).delay("42")
        worker.one()

        assert dead_letters_in(app) == []

    @pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, type("Own", (BaseException,), {})])
    def test_error_that_is_no_exception(self, app: Celery, worker: Worker, error: type[BaseException]) -> None:
        """Celery would acknowledge the message, and let it go."""
        raising(error()).delay("42")
        worker.one()

        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.error, error.__name__ in dead_letter.text) == ("RuntimeError", True)

    @pytest.mark.parametrize("name", ["Timeout", "GreenletExit"])
    def test_end_of_a_greenlet_is_none_of_a_message(self, name: str) -> None:
        error = getattr(pytest.importorskip("gevent"), name)
        with pytest.raises(error), raised.failing():
            raise error

    @pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
    def test_end_of_a_process_is_none_of_a_message(self, error: type[BaseException]) -> None:
        with pytest.raises(error), raised.failing():
            raise error

    def test_direct_call(self, app: Celery, order: Any) -> None:
        """The exception reaches the caller."""
        with pytest.raises(Boom):
            order.place("42")
        assert dead_letters_in(app) == []

    def test_eager_mode(self, eager: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None:
            raise Boom

        with pytest.raises(Boom):
            place.delay("42")
        assert dead_letters_in(eager) == []

    def test_signal(self, app: Celery, worker: Worker, order: Any) -> None:
        heard: list[Any] = []

        def hear(sender: Any, dead_letter: Any, exception: Any, **_: Any) -> None:
            heard.append((sender.name, dead_letter.key, type(exception)))

        signals.step_failed.connect(hear)
        try:
            order.place.delay("42")
            worker.one()
        finally:
            signals.step_failed.disconnect(hear)

        assert heard == [("order.place", "42", Boom)]

    def test_arguments_are_still_checked_and_described(self, order: Any) -> None:
        with pytest.raises(TypeError):
            order.place.delay()

    def test_message_that_fails_before_it_is_correlated(self, app: Celery, worker: Worker) -> None:
        """In whatever way: dead-lettering it meets the same error."""

        def broken(arguments: Any) -> str:
            raise OSError("the callable needs a file")

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.handles(by={"order_id": broken})
        def pay(order: Order, number: int) -> None: ...

        pay.delay(1)

        assert worker.one().fate == "acked"
        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.task, dead_letter.key) == ("order.pay", "")
        assert outcomes(app) == []

    @pytest.mark.parametrize("stage", ["dumps", "locate"])
    def test_soft_time_limit_while_it_is_dead_lettered(
        self, app: Celery, worker: Worker, order: Any, stage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The message comes again: its dead letter would lack what was cut short."""
        monkeypatch.setattr(f"celery_sagas.worker.failures.dead_letters.{stage}", failing(SoftTimeLimitExceeded()))
        order.place.apply_async(("42",), task_id="m1")

        assert isinstance(worker.one().error, Ignore)
        assert [message.id for message in worker.waiting()] == ["m1"]
        assert dead_letters_in(app) == []

    def test_payload_that_is_no_json(
        self, app: Celery, worker: Worker, order: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """There is a dead letter all the same, without a message that could be retried."""
        monkeypatch.setattr("celery_sagas.worker.failures.dead_letters.dumps", failing(TypeError("no JSON")))
        order.place.delay("42")
        worker.one()

        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.key, dead_letter.error) == ("42", "Boom")
        assert "task" not in loads(dead_letter.payload)
        assert "cannot be retried" in caplog.text


class TestStoreAway:
    """Nothing is acknowledged unless it is kept."""

    def test_message_is_redelivered_later(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        interposed(app).once_before("record", failing(AWAY))
        order.place.apply_async(("42",), task_id="m1")

        delivered = worker.one()
        (again,) = worker.waiting()

        assert (delivered.fate, type(delivered.error)) == ("acked", Ignore)
        assert (again.id, again.headers[REDELIVERIES]) == ("m1", 1)
        fixed.append(True)
        worker.run()
        assert order.saga.find("42").total == 1

    def test_redelivered_counter_is_not_kept(self, app: Celery, worker: Worker, order: Any) -> None:
        order.place.apply_async(("42",), headers={REDELIVERIES: 3})
        worker.one()

        (dead_letter,) = dead_letters_in(app)
        assert REDELIVERIES not in loads(dead_letter.payload)["options"]["headers"]

    def test_broker_away_too(
        self, app: Celery, worker: Worker, order: Any, held: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interposed(app).once_before("record", failing(AWAY))
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", failing(PublishError("away", True)))
        order.place.delay("42")

        delivered = worker.one()

        assert (delivered.fate, type(delivered.error)) == ("requeued", Reject)
        assert held == [HELD_S]

    def test_message_that_cannot_be_published_either(
        self, app: Celery, worker: Worker, order: Any, held: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The broker keeps it, and gets it back after a pause."""
        monkeypatch.setattr(backend_of(app).dead, "add", failing(AWAY))
        app.send_task("order.place", ["42"], {"nonsense": 1})

        assert worker.one().fate == "requeued"
        assert held == [HELD_S]


@pytest.fixture(params=["damaged", "orphaned"])
def spoilt(request: pytest.FixtureRequest, new_app: NewApp, redis_url: str) -> Celery:
    """An app whose order 42 Redis keeps in a way that it will never be found again."""
    app = new_app(saga_prefix=unique("test"))
    app.conf.saga_backend = redis_url

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    place("42")
    with redis.Redis.from_url(redis_url) as client:
        instances = f"{{{app.conf.saga_prefix}:0}}:instances:order"
        ((id, packed),) = client.hgetall(instances).items()
        if request.param == "damaged":
            client.hset(instances, id, packed + b"x")
        else:
            client.hdel(instances, id)
    return app


class TestNeverReadable:
    """What the store keeps of the instance is damaged: its messages do not circle indefinitely."""

    def test_message_becomes_a_dead_letter(self, spoilt: Celery) -> None:
        """Delivered again, it fails again, and stays one dead letter."""
        worker = Worker(spoilt)
        spoilt.send_task("order.place", ["42"], task_id="m1")
        failed = worker.one()

        assert (failed.fate, type(failed.error)) == ("acked", UnreadableState)
        worker.deliver_again(failed)
        assert worker.waiting() == []
        assert [(dead_letter.message_id, dead_letter.error) for dead_letter in dead_letters_in(spoilt)] == [
            ("m1", "UnreadableState")
        ]

    def test_dead_letter_is_retried(self, spoilt: Celery, redis_url: str) -> None:
        """Once the record is fixed, by removing it here."""
        worker = Worker(spoilt)
        spoilt.send_task("order.place", ["42"], task_id="m1")
        worker.one()
        with redis.Redis.from_url(redis_url) as client:
            for kind in ("instances", "keys"):
                client.delete(f"{{{spoilt.conf.saga_prefix}:0}}:{kind}:order")

        assert retry_dead_letter(runtime_of(spoilt), dead_letters_in(spoilt)[0]).id
        (done,) = worker.run()
        assert (done.error, dead_letters_in(spoilt), outcomes(spoilt)) == (None, [], ["started", "failed", "started"])

    def test_dead_letter_is_retried_too_early(self, spoilt: Celery) -> None:
        """It is another dead letter."""
        worker = Worker(spoilt)
        spoilt.send_task("order.place", ["42"], task_id="m1")
        worker.one()
        (dead_letter,) = dead_letters_in(spoilt)

        retry_dead_letter(runtime_of(spoilt), dead_letter)
        worker.run()

        assert [again.message_id for again in dead_letters_in(spoilt)] == [new_id_of(dead_letter)]


class TestTooManyDeliveries:
    """A message that ends its worker each time."""

    def test_becomes_a_dead_letter(self, app: Celery, order: Any) -> None:
        app.conf.saga_max_deliveries = 3
        for _ in range(2):
            backend_of(app).deliveries.count("order.place", "m1")
        order.place.apply_async(("42",), task_id="m1")

        delivered = AgainWorker(app).one()

        assert isinstance(delivered.error, TooManyDeliveries)
        assert delivered.fate == "acked"
        assert [dead_letter.error for dead_letter in dead_letters_in(app)] == ["TooManyDeliveries"]
        assert outcomes(app) == ["failed"]

    def test_first_delivery_costs_nothing(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        fixed.append(True)
        order.place.apply_async(("42",), task_id="m1")
        worker.one()

        assert backend_of(app).deliveries.count("order.place", "m1") == 1

    def test_redelivery_that_works(self, app: Celery, order: Any, fixed: list[bool]) -> None:
        fixed.append(True)
        order.place.apply_async(("42",), task_id="m1")

        assert AgainWorker(app).one().error is None
        assert backend_of(app).deliveries.count("order.place", "m1") == 2


def run_out(request: Any) -> None:
    """Do what a pool of processes does when a task's time is over."""
    request.on_failure(info_of(TimeLimitExceeded(1)))
    request.on_timeout(soft=False, timeout=1)


class TestTimeLimit:
    """A hard time limit, in the main process."""

    def test_message_is_kept_then_acknowledged(self, app: Celery, order: Any, fates: list[str]) -> None:
        order.place.apply_async(("42",), task_id="m1")

        run_out(request_for(app, fates))

        assert fates == ["acked"]
        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.error, dead_letter.message_id, dead_letter.key) == ("TimeLimitExceeded", "m1", "42")
        assert loads(dead_letter.payload)["args"] == ["42"]
        assert outcomes(app) == ["failed"]

    def test_pool_that_calls_on_timeout_alone(self, app: Celery, order: Any, fates: list[str]) -> None:
        order.place.delay("42")

        request_for(app, fates).on_timeout(False, 1)

        assert fates == ["acked"]
        assert len(dead_letters_in(app)) == 1

    def test_soft_limit_is_the_handlers(self, app: Celery, order: Any, fates: list[str]) -> None:
        order.place.delay("42")

        request_for(app, fates).on_timeout(True, 1)

        assert fates == []
        assert dead_letters_in(app) == []

    def test_store_away(
        self, app: Celery, order: Any, fates: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The broker gets the message back."""
        monkeypatch.setattr(backend_of(app).dead, "add", failing(AWAY))
        order.place.delay("42")

        run_out(request_for(app, fates))

        assert fates == ["requeued"]
        assert "is requeued" in caplog.text

    def test_silent_store(self, app: Celery, order: Any, fates: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """The main process does not wait indefinitely."""
        monkeypatch.setattr(requests, "within", failing(TimeoutError()))
        order.place.delay("42")

        run_out(request_for(app, fates))

        assert fates == ["requeued"]

    def test_run_that_committed_first(self, app: Celery, order: Any, fixed: list[bool], fates: list[str]) -> None:
        fixed.append(True)
        order.place.apply_async(("42",), task_id="m1")
        request = request_for(app, fates)
        order.place.apply_async(("42",), task_id="m1")
        Worker(app).one()

        run_out(request)

        assert fates == ["acked"]
        assert dead_letters_in(app) == []
        assert order.saga.find("42").total == 1

    @pytest.mark.parametrize(("is_batched", "ended"), [(False, [4711]), (True, [])])
    def test_process_that_handles_others_is_not_ended(
        self, app: Celery, order: Any, fates: list[str], is_batched: bool, ended: list[int]
    ) -> None:
        """``revoke(terminate=True)`` ends the process of a message, if it has no other."""
        order.place.delay("42")
        request = request_for(app, fates)
        request.worker_pid, request.time_start, request.is_batched = 4711, 1.0, is_batched
        terminated: list[int] = []
        request.terminate(SimpleNamespace(terminate_job=lambda pid, signal: terminated.append(pid)), "TERM")
        assert terminated == ended

    @pytest.mark.parametrize("error", [Ignore(), Reject("no"), Retry(exc=Boom()), WorkerLostError(), Terminated()], ids=repr)
    def test_what_is_no_failure(self, app: Celery, order: Any, fates: list[str], error: Exception) -> None:
        """Celery decides."""
        order.place.delay("42")

        fail_with(request_for(app, fates), error)

        assert dead_letters_in(app) == []
        assert len(fates) == 1

    def test_failure_outside_of_run(self, app: Celery, order: Any, fates: list[str]) -> None:
        """Such as one of the user's ``before_start``."""
        order.place.delay("42")

        fail_with(request_for(app, fates), Boom("at the start"))

        assert fates == ["acked"]
        assert [(dead_letter.error, dead_letter.text, dead_letter.key) for dead_letter in dead_letters_in(app)] == [
            ("Boom", "at the start", "42")
        ]

    def test_failure_that_was_seen_to(
        self, app: Celery, worker: Worker, order: Any, fates: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In the process that ran the task, from where the exception comes by pickle: the store is not asked again."""
        order.place.delay("42")
        order.place.delay("42")
        error = worker.one().error
        assert isinstance(error, Boom)
        monkeypatch.setattr(requests, "within", failing(AssertionError("the store was asked")))

        fail_with(request_for(app, fates), pickle.loads(pickle.dumps(error)))

        assert fates == ["acked"]

    def test_strategy_uses_it(self, app: Celery, order: Any) -> None:
        """As the worker's consumer has it made."""
        task = app.tasks["order.place"]
        made: list[Any] = []
        task.Strategy = lambda task, app, consumer, **_: made.append(task.Request)
        try:
            task.start_strategy(
                app, SimpleNamespace(restart_count=0, pool=SimpleNamespace(uses_semaphore=False, is_green=False, num_processes=1))
            )
        finally:
            del task.Strategy

        assert issubclass(made[0], FailingRequest)


class TestDeadline:
    """Work in a thread."""

    def test_result_and_error_pass(self) -> None:
        assert within(DEADLINE_S, lambda: 1) == 1
        with pytest.raises(Boom):
            within(DEADLINE_S, failing(Boom()))

    def test_work_that_takes_too_long(self) -> None:
        going_on = threading.Event()
        with pytest.raises(TimeoutError):
            within(0.01, going_on.wait)
        going_on.set()


class Consumer:
    """A worker's consumer, as far as unknown tasks concern it."""

    connection_errors = ()
    hub = event_dispatcher = None

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.timer = self
        self.qos = QoS(lambda prefetch_count: None, 1)
        self.rejected: list[Any] = []
        self.later: list[Any] = []

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Reject a message."""
        self.rejected.append(message)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Reject a message."""
        self.rejected.append(message)

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Acknowledge a message."""
        self.rejected.append(message)

    def create_task_handler(self) -> None:
        """Return what takes messages: none comes this way."""

    def call_soon(self, function: Any) -> None:
        """Call at once."""
        function()

    def call_after(self, seconds: float, function: Any, args: Any) -> None:
        """Remember what is to be called."""
        self.later.append(lambda: function(*args))


def message_of(task: str, **headers: Any) -> Any:
    """Return a message as kombu delivers it."""
    given: list[bool] = []
    return SimpleNamespace(
        headers={"task": task, "id": "m1", **headers},
        payload=(["42"], {}, {"chain": None}),
        properties={"priority": 3, "reply_to": "replies", "correlation_id": "c1"},
        delivery_info={},
        body=b"",
        given_back=given,
        reject_log_error=lambda logger, errors, requeue=False: given.append(requeue),
    )


@pytest.fixture
def consumer(app: Celery) -> Consumer:
    """A consumer with the step."""
    made = Consumer(app)
    KeepUnknownTasks(made).create(made)
    return made


class TestUnknownTasks:
    """Messages of ours for a task that is not registered here."""

    @pytest.mark.parametrize(
        ("task", "headers", "saga"),
        [
            ("order.new_step", {}, "order"),
            ("charge", {CAUSE: "m0"}, ""),
            ("charge", {CAUSATION: {"order": "i1"}}, ""),
            ("charge", {ADDRESS: {"instance": "i1", "timeout": "t1"}}, ""),
            ("charge", {MESSAGE_ID: "mine"}, ""),
            ("charge", {AGGREGATOR: "charge"}, ""),
            ("charge", {STEP: True}, ""),
        ],
    )
    def test_are_kept_before_they_are_rejected(
        self, app: Celery, order: Any, consumer: Consumer, task: str, headers: dict[str, Any], saga: str
    ) -> None:
        message = message_of(task, **headers)

        consumer.on_unknown_task(None, message, KeyError(task))

        assert message.given_back == [False]
        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.task, dead_letter.saga, dead_letter.error) == (task, saga, "NotRegistered")
        assert dead_letter.message_id == headers.get(MESSAGE_ID, "m1")
        sent = loads(dead_letter.payload)
        assert (sent["args"], sent["options"]["task_id"], sent["options"]["priority"]) == (["42"], "m1", 3)
        assert sent["options"]["headers"] == headers

    def test_are_told_of(self, app: Celery, order: Any, consumer: Consumer) -> None:
        heard: list[Any] = []

        def hear(sender: Any, dead_letter: Any, exception: Any, **_: Any) -> None:
            heard.append((sender, dead_letter.task, type(exception)))

        signals.step_failed.connect(hear)
        try:
            consumer.on_unknown_task(None, message_of("order.new_step"), KeyError())
        finally:
            signals.step_failed.disconnect(hear)

        assert heard == [("order.new_step", "order.new_step", NotRegistered)]

    def test_are_kept_with_the_saga(self, new_app: NewApp) -> None:
        """Of an unknown step, in the backend of its saga; of any other task, in that of sagas that name none."""
        app = new_app(saga_backends={"orders": {"backend": f"memory://{uuid4()}"}})

        class Order(Saga, correlate_by="order_id", backend="orders"):
            order_id: str

        KeepUnknownTasks(consumer := Consumer(app)).create(consumer)
        for task in ("order.new_step", "charge"):
            consumer.on_unknown_task(None, message_of(task, **{CAUSE: "m0"}), KeyError(task))
        kept = [[dead_letter.task for dead_letter in backend.dead.list(10)] for backend in runtime_of(app).backends]
        assert kept == [["charge"], ["order.new_step"]]

    def test_others_are_not_ours(self, app: Celery, order: Any, consumer: Consumer) -> None:
        consumer.on_unknown_task(None, message_of("charge"), KeyError())

        assert len(consumer.rejected) == 1
        assert dead_letters_in(app) == []

    def test_worker_without_sagas(self, app: Celery, consumer: Consumer) -> None:
        """It runs participants, and its backend is named: nobody else gets the message."""
        consumer.on_unknown_task(None, message_of("order.tick", **{CAUSE: "m0"}), KeyError())

        assert [dead_letter.task for dead_letter in dead_letters_in(app)] == ["order.tick"]

    def test_worker_without_sagas_and_backend(self, app: Celery, consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a saga has sent to a task may be of no use to it; but a saga's own messages are."""
        monkeypatch.setattr(backends, "is_default_backend", lambda conf: True)
        consumer.on_unknown_task(None, message_of("charge", **{CAUSE: "m0"}), KeyError())
        assert dead_letters_in(app) == []

        consumer.on_unknown_task(None, message_of("order.place", **{CAUSE: "m0", STEP: True}), KeyError())

        assert len(consumer.rejected) == 1
        assert [dead_letter.task for dead_letter in dead_letters_in(app)] == ["order.place"]

    def test_default_file_is_named_and_counted(
        self, app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nobody looks for the dead letters of a worker that has neither sagas nor a backend."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(control, "_COUNT_S", DEADLINE_S)
        with closing(Celery("participant", broker="memory://", set_as_current=False)) as participant:
            consumer, asked = Consumer(participant), SimpleNamespace(app=participant)
            KeepUnknownTasks(consumer).create(consumer)
            before = control.sagas_relay(asked)

            consumer.on_unknown_task(None, message_of("order.place", **{STEP: True}), KeyError())

            after = control.sagas_relay(asked)
        assert (before, after) == ({"running": False}, {"running": False, "dead_letters": 1})
        (kept,) = [record for record in caplog.records if "is kept as the dead letter" in record.getMessage()]
        assert kept.levelname == "ERROR"
        assert f" in {tmp_path / 'celery-sagas.sqlite3'}: set saga_backend" in kept.getMessage()

    def test_backend_that_is_named_may_hold_a_password(
        self, app: Celery, consumer: Consumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        consumer.on_unknown_task(None, message_of("order.place", **{STEP: True}), KeyError())

        assert "is kept as the dead letter" in caplog.text
        assert "saga_backend" not in caplog.text

    def test_step_that_is_asked(self, app: Celery, order: Any, consumer: Consumer, worker: Worker) -> None:
        """It is kept, and whoever asks is told: its dead letter may be retried, and answer."""
        otherwise = Target("order.told")
        address = ReturnAddress("order", "i1", "r1", None, otherwise)
        headers = {STEP: True, **return_address_headers("parcel.take", address)}

        consumer.on_unknown_task(None, message_of("parcel.take", **headers), KeyError())

        assert [dead_letter.task for dead_letter in dead_letters_in(app)] == ["parcel.take"]
        (told,) = worker.waiting()
        assert (told.task, told.headers[ADDRESS]["came"]) == (otherwise.task, ReplyKind.UNCERTAIN)

    def test_protocol_1(self, app: Celery, order: Any, consumer: Consumer) -> None:
        message = message_of("")
        message.headers = {}
        message.payload = {"task": "order.new_step", "id": "m1", "args": ["42"], "kwargs": {}}

        consumer.on_unknown_task(None, message, KeyError())

        assert [(dead_letter.task, dead_letter.message_id) for dead_letter in dead_letters_in(app)] == [("order.new_step", "m1")]

    def test_store_away(self, app: Celery, order: Any, consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
        """The broker gets the message back, after a while: it comes again at once."""
        monkeypatch.setattr(backend_of(app).dead, "add", failing(AWAY))
        message = message_of("order.new_step")

        consumer.on_unknown_task(None, message, KeyError())

        assert consumer.rejected == message.given_back == []
        consumer.later[0]()
        assert message.given_back == [True]

    def test_store_that_was_away_a_moment_ago_is_not_asked(
        self, app: Celery, order: Any, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It would be waited for again at each message, with everything else."""
        with monkeypatch.context() as patch:
            patch.setattr(backend_of(app).dead, "add", failing(AWAY))
            consumer.on_unknown_task(None, message_of("order.new_step"), KeyError())
        message = message_of("order.new_step", id="m2")

        consumer.on_unknown_task(None, message, KeyError())

        assert dead_letters_in(app) == []
        consumer.later[1]()
        assert message.given_back == [True]

    def test_same_message_is_one_dead_letter(self, app: Celery, order: Any, consumer: Consumer) -> None:
        for _ in range(2):
            consumer.on_unknown_task(None, message_of("order.new_step"), KeyError())

        assert len(dead_letters_in(app)) == 1


class TestRetry:
    """An operator's decision."""

    def test_once_fixed(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        order.place.apply_async(("42",), {"total": 5}, task_id="m1", headers={"tenant": "t"}, expires=600)
        failed = worker.one()
        (dead_letter,) = dead_letters_in(app)
        fixed.append(True)

        new_id = retry_dead_letter(runtime_of(app), dead_letter).id

        (again,) = worker.waiting()
        assert again.id == new_id != "m1"
        assert (again.headers["tenant"], again.headers["retries"], again.headers["expires"]) == ("t", 0, None)
        assert dead_letters_in(app) == []
        worker.run()
        worker.deliver_again(failed)
        assert order.saga.find("42").total == 5

    def test_twice_is_once(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        """As when the dead letter could not be removed the first time."""
        order.place.delay("42")
        worker.one()
        (dead_letter,) = dead_letters_in(app)
        fixed.append(True)

        assert retry_dead_letter(runtime_of(app), dead_letter) == retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()

        assert order.saga.find("42").total == 1

    def test_in_vain(self, app: Celery, worker: Worker, order: Any) -> None:
        """It is another dead letter."""
        order.place.delay("42")
        worker.one()
        (dead_letter,) = dead_letters_in(app)

        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()

        (second,) = dead_letters_in(app)
        assert second.id != dead_letter.id
        assert second.message_id == new_id_of(dead_letter)

    @pytest.mark.parametrize("why", ["completed", "duplicate"])
    def test_that_changes_nothing_any_more_is_warned_of(
        self, app: Celery, worker: Worker, fixed: list[bool], caplog: pytest.LogCaptureFixture, why: str
    ) -> None:
        """Its worker says so, since nothing is known of it before it comes there."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def begin(order: Order, order_id: str) -> None: ...

        @Order.handles
        def tell(order: Order, order_id: str) -> None:
            if not fixed:
                raise Boom

        @Order.handles
        def end(order: Order, order_id: str) -> None:
            order.complete()

        begin.delay("42")
        tell.delay("42")
        worker.run()
        (dead_letter,) = dead_letters_in(app)
        fixed.append(True)
        if why == "completed":
            end("42")
        else:
            retry_dead_letter(runtime_of(app), dead_letter)
        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()

        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        retried = f"order.tell[{new_id_of(dead_letter)}] is the retry of the dead letter {dead_letter.id}"
        told = f"{retried}, and changes nothing: order '42' {why}"
        assert warned.count(told) == 1

    def test_message_id_of_the_producer_is_not_used_again(
        self, app: Celery, worker: Worker, order: Any, fixed: list[bool]
    ) -> None:
        """The journal has it already."""
        order.place.apply_async(("42",), headers={MESSAGE_ID: "mine"})
        worker.one()
        fixed.append(True)

        retry_dead_letter(runtime_of(app), dead_letters_in(app)[0])
        worker.run()

        assert order.saga.find("42").total == 1

    def test_dead_letter_of_an_interrupted_dead_lettering(
        self, app: Celery, worker: Worker, order: Any, fixed: list[bool]
    ) -> None:
        """The message was handled after all."""
        order.place.apply_async(("42",), task_id="m1")
        worker.one()
        (dead_letter,) = dead_letters_in(app)
        backend_of(app).journal.purge(-60_000, 10)  # the tombstone was not written
        fixed.append(True)
        order.place.apply_async(("42",), task_id="m1")
        worker.one()

        assert retry_dead_letter(runtime_of(app), dead_letter) == Retried(reason="was handled since, under its own id")
        assert worker.waiting() == []
        assert dead_letters_in(app) == []

    def test_chain(self, app: Celery, worker: Worker, order: Any, fixed: list[bool]) -> None:
        """As the relay keeps one: its first task gets the new id."""
        fixed.append(True)
        frozen = runtime_of(app).services.terms.serialize(order.place.si("42") | order.place.si("43"), iter(["a", "b"]).__next__)
        dead_letter = DeadLetter("l1", frozen.task, frozen.message_id, "order", "", "E", "", "", frozen.payload)
        backend_of(app).dead.add(dead_letter)

        retry_dead_letter(runtime_of(app), dead_letter)
        done = worker.run()

        assert [delivered.id for delivered in done] == [new_id_of(dead_letter), "b"]
        assert order.saga.find("42").total == order.saga.find("43").total == 1

    def test_task_that_this_app_does_not_know(self, app: Celery, worker: Worker, order: Any) -> None:
        """Somebody else does."""
        payload = dumps({"task": "elsewhere.pay", "args": ["42"], "kwargs": {}, "options": {"task_id": "m1"}})
        dead_letter = DeadLetter("l1", "elsewhere.pay", "m1", "", "", "NotRegistered", "", "", str(payload))
        backend_of(app).dead.add(dead_letter)

        new_id = retry_dead_letter(runtime_of(app), dead_letter).id

        assert [(message.task, message.id, message.args) for message in worker.waiting()] == [("elsewhere.pay", new_id, ["42"])]
        assert dead_letters_in(app) == []

    def test_not_confirmed(self, app: Celery, worker: Worker, order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """The dead letter stays."""
        order.place.delay("42")
        worker.one()
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", failing(PublishError("away", True)))

        with pytest.raises(PublishError):
            retry_dead_letter(runtime_of(app), dead_letters_in(app)[0])
        assert len(dead_letters_in(app)) == 1

    def test_timeout_finds_its_instance(self, app: Celery, worker: Worker) -> None:
        """Its address stays with it."""
        broken = [True]

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            reminded: int = 0

        @Order.starts
        def begin(order: Order, order_id: str) -> None:
            order.schedule(remind, after=0)

        @Order.handles
        def remind(order: Order) -> None:
            order.reminded += 1
            if broken:
                raise Boom

        begin.delay("42")
        worker.run()
        (dead_letter,) = dead_letters_in(app)
        assert (dead_letter.task, dead_letter.key) == ("order.remind", "42")
        broken.clear()

        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()

        found = Order.find("42")
        assert found is not None
        assert found.reminded == 1
        assert found.saga.timeouts == {}

    @pytest.mark.parametrize("saga", ["", "order"])
    def test_timeout_of_a_saga_that_this_app_does_not_know(
        self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch, saga: str
    ) -> None:
        """Its instance, of which this app cannot find out, may wait for it."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def begin(order: Order, order_id: str) -> None:
            order.schedule(remind, after=0)

        @Order.handles
        def remind(order: Order) -> None:
            raise Boom

        begin.delay("42")
        worker.run()
        (dead_letter,) = dead_letters_in(app)
        monkeypatch.setattr(registry, "sagas", {})
        monkeypatch.setattr(registry, "steps", {})
        dead_letter = dead_letter._replace(saga=saga)

        assert retry_dead_letter(runtime_of(app), dead_letter) == Retried(new_id_of(dead_letter))

        assert [message.task for message in worker.waiting()] == ["order.remind"]
        assert dead_letters_in(app) == []

    def test_timeout_of_a_step_under_its_earlier_name(self, app: Celery, worker: Worker, fixed: list[bool]) -> None:
        """The worker that kept it knew no saga."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str
            reminded: bool = False

        @Order.starts
        def begin(order: Order, order_id: str) -> None:
            order.schedule(remind, after=0)

        @Order.handles(formerly="mailing.remind")
        def remind(order: Order) -> None:
            if not fixed:
                raise Boom
            order.reminded = True

        begin.delay("42")
        worker.run()
        (dead_letter,) = dead_letters_in(app)
        fixed.append(True)

        retry_dead_letter(runtime_of(app), dead_letter._replace(saga="", task="mailing.remind"))
        worker.run()

        found = Order.find("42")
        assert found is not None
        assert found.reminded
