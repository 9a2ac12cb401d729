"""Failures: what a step gets in the place of an answer that will not come."""

import pickle
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from amqp.exceptions import MessageNacked
from celery import Celery, chain
from celery.app.task import Context
from celery.exceptions import (
    Ignore,
    Reject,
    Retry,
    SoftTimeLimitExceeded,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
)
from celery.worker import state
from celery.worker.request import Request

from celery_sagas import Batch, Failure, aggregator
from celery_sagas.core.ids import derived_id
from celery_sagas.core.registry import registry
from celery_sagas.errors import PublishError, StoreUnavailable, Unconfirmed
from celery_sagas.worker.failures import notifications
from celery_sagas.worker.failures.requests import FailingRequest, keeping_failures
from celery_sagas.worker.failures.unknown import KeepUnknownTasks
from celery_sagas.worker.headers import MESSAGE_ID, RETURN_ADDRESS
from celery_sagas.worker.process.bootsteps import add_bootstep
from celery_sagas.worker.runtime import runtime_of
from tests.apps import AgainWorker, NewApp, Worker, backend_of
from tests.worker.main_process import fail_with, fates, info_of, request_for
from tests.worker.requests.orders import Boom, Shop, only, shop

__all__ = ["fates", "shop"]


def raising(error: BaseException) -> Any:
    """Return what raises an error."""

    def work(*_: Any) -> Any:
        raise error

    return work


def caused(error: Exception, by: Exception) -> Exception:
    """Return an error with a cause."""
    error.__cause__ = by
    return error


def ask(shop: Shop, worker: Worker, **options: Any) -> str:
    """Have the order 42 ask for a payment; return the request's id."""
    shop.place(worker, lambda order: order.send(shop.charge.s(5), then="paid", otherwise="unpaid", **options))
    return str(only(worker).id)


class TestError:
    """What a task raises after its last retry."""

    def test_is_told_once(self, worker: Worker, shop: Shop) -> None:
        shop.work = raising(Boom("the card is blocked"))
        request = ask(shop, worker)
        worker.run()

        assert shop.seen() == ["unpaid error"]
        failure = Failure(kind="error", task="charge", task_id=request, error="Boom", text="the card is blocked", retries=0)
        assert shop.failure() == failure
        assert shop.pending().requests == {}
        assert worker.done[-1].id == derived_id(request, "failure")

    def test_not_before_the_last_retry(self, app: Celery, worker: Worker, shop: Shop) -> None:
        @app.task(name="stubborn", bind=True, autoretry_for=(Boom,), max_retries=2, default_retry_delay=0, retry_backoff=False)
        def stubborn(self: Any) -> None:
            shop.ran.append(self.request.retries)
            raise Boom

        shop.place(worker, lambda order: order.send(stubborn.s(), then="paid", otherwise="unpaid"))
        for retries in range(3):
            assert shop.seen() == []
            worker.one()
            assert shop.ran == list(range(retries + 1))
        worker.run()

        assert shop.seen() == ["unpaid error"]
        assert (shop.failure().error, shop.failure().retries) == ("Boom", 2)

    @pytest.mark.parametrize(
        ("otherwise", "seen"),
        [
            (lambda saga: saga.unpaid, "unpaid error"),
            (lambda saga: saga.unpaid.s("Rome"), "unpaid error Rome"),
            (lambda saga: saga.told.si(), "told"),
        ],
    )
    def test_targets(self, worker: Worker, shop: Shop, otherwise: Any, seen: str) -> None:
        shop.work = raising(Boom())
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise=otherwise(shop.saga)))
        worker.run()

        assert shop.seen() == [seen]

    def test_nobody_named_for_it(self, worker: Worker, shop: Shop) -> None:
        """The request stays: an operator may run the task again."""
        shop.work = raising(Boom())
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        charge = only(worker)
        worker.run()
        assert (worker.waiting(), shop.seen(), len(shop.pending().requests)) == ([], [], 1)

        shop.work = lambda task: "receipt"
        worker.deliver_again(charge)
        worker.run()
        assert shop.seen() == ["paid receipt"]

    def test_task_that_nobody_has_asked(self, app: Celery, worker: Worker, shop: Shop) -> None:
        shop.work = raising(Boom())
        shop.charge.delay()
        assert worker.one().fate == "acked"
        assert worker.waiting() == []

    def test_answer_afterwards_does_nothing(self, worker: Worker, shop: Shop) -> None:
        """One outcome is handled."""
        shop.work = raising(Boom())
        ask(shop, worker)
        charge = worker.one()
        worker.run()
        shop.work = lambda task, amount: "receipt"
        worker.deliver_again(charge)
        worker.run()

        assert worker.done[-1].task == "order.paid"
        assert shop.seen() == ["unpaid error"]

    def test_after_an_answer_does_nothing(self, worker: Worker, shop: Shop) -> None:
        ask(shop, worker)
        charge = worker.one()
        worker.run()
        shop.work = raising(Boom())
        worker.deliver_again(charge)
        worker.run()

        assert worker.done[-1].task == "order.unpaid"
        assert shop.seen() == ["paid receipt"]

    def test_participant_that_fails_again(self, worker: Worker, shop: Shop) -> None:
        shop.work = raising(Boom())
        ask(shop, worker)
        charge = worker.one()
        worker.run()
        worker.deliver_again(charge)
        worker.run()

        assert shop.seen() == ["unpaid error"]

    def test_answer_that_cannot_be_sent(self, worker: Worker, shop: Shop) -> None:
        shop.work = lambda task, amount: object()
        ask(shop, worker)
        worker.run()

        assert shop.seen() == ["unpaid error"]
        assert shop.failure().error == "EncodeError"

    def test_texts_are_bounded(self, worker: Worker, shop: Shop) -> None:
        shop.work = raising(type("B" * 1_000, (Exception,), {})("x\0" * 100_000))
        ask(shop, worker)
        worker.run()

        assert (len(shop.failure().error), len(shop.failure().text)) == (255, 2_000)
        assert "\0" not in shop.failure().text

    def test_exception_that_cannot_be_pickled(self, worker: Worker, shop: Shop) -> None:
        class Unpicklable(Exception):
            def __init__(self, a: object, b: object) -> None:
                super().__init__("unpicklable")
                self.a = lambda: b

        shop.work = raising(Unpicklable(1, 2))
        ask(shop, worker)
        worker.run()

        assert shop.failure().error == "Unpicklable"

    @pytest.mark.parametrize(
        ("error", "told"), [(Ignore(), []), (Reject("no", requeue=True), []), (Reject("no"), ["unpaid error"])]
    )
    def test_what_a_task_may_choose(self, worker: Worker, shop: Shop, error: Exception, told: list[str]) -> None:
        shop.work = raising(error)
        ask(shop, worker)
        worker.run()

        assert shop.seen() == told

    def test_soft_time_limit(self, worker: Worker, shop: Shop) -> None:
        shop.work = raising(SoftTimeLimitExceeded(3))
        ask(shop, worker)
        worker.run()

        assert (shop.failure().kind, shop.failure().error) == ("error", "SoftTimeLimitExceeded")


class TestRevoked:
    """What is taken back before it runs."""

    @pytest.fixture(autouse=True)
    def forgotten(self) -> Any:
        yield
        state.revoked.clear()

    def test_revoked(self, worker: Worker, shop: Shop) -> None:
        request = ask(shop, worker)
        state.revoked.add(request)
        worker.run()

        assert shop.ran == []
        assert shop.failure() == Failure(kind="revoked", task="charge", task_id=request, text="it was revoked")

    def test_expired(self, worker: Worker, shop: Shop) -> None:
        sent = shop.charge.s(5).set(expires=datetime(2000, 1, 1, tzinfo=UTC))
        shop.place(worker, lambda order: order.send(sent, then="paid", otherwise="unpaid"))
        worker.run()

        assert shop.ran == []
        assert (shop.failure().kind, shop.failure().text) == ("revoked", "it expired before a worker began it")

    def test_step_of_another_saga(self, worker: Worker, shop: Shop) -> None:
        @shop.saga.starts
        def other(order: Any, order_id: str) -> None: ...

        shop.place(worker, lambda order: order.send(other.s("43"), then="paid", otherwise="unpaid"))
        state.revoked.add(only(worker).id)
        worker.run()

        assert shop.seen() == ["unpaid revoked"]


class TestChain:
    """The first of its tasks that fails ends it."""

    @pytest.mark.parametrize("failing", [0, 1, 2])
    def test_failure(self, app: Celery, worker: Worker, shop: Shop, failing: int) -> None:
        @app.task(name="third")
        def third(answer: str) -> str:
            if failing == 2:
                raise Boom
            return answer

        @app.task(name="second")
        def second(answer: str) -> str:
            if failing == 1:
                raise Boom
            return answer

        shop.work = raising(Boom()) if failing == 0 else lambda task: "receipt"
        sent = chain(shop.charge.s(), second.s(), third.s())
        shop.place(worker, lambda order: order.send(sent, then="paid", otherwise="unpaid"))
        worker.run()

        assert shop.seen() == ["unpaid error"]
        assert shop.failure().task == ("charge", "second", "third")[failing]
        assert [done.task for done in worker.done][1:] == [*("charge", "second", "third")[: failing + 1], "order.unpaid"]

    def test_revoked_within(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(chain(shop.charge.s(), shop.ship.s()), then="paid", otherwise="unpaid"))
        worker.one()
        state.revoked.add(only(worker).id)
        try:
            worker.run()
        finally:
            state.revoked.clear()

        assert (shop.failure().kind, shop.failure().task) == ("revoked", "ship")

    def test_only_the_last_answers(self, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(chain(shop.charge.s(), shop.ship.s()), then="paid"))
        assert RETURN_ADDRESS not in only(worker).headers
        worker.one()
        assert RETURN_ADDRESS in only(worker).headers


class TestReplacement:
    """A task that replaces itself by another one is still the one that was asked."""

    def test_failure(self, app: Celery, worker: Worker, shop: Shop) -> None:
        @app.task(name="other")
        def other() -> None:
            raise Boom

        shop.work = lambda task, amount: task.replace(other.si())
        ask(shop, worker)
        worker.run()

        assert (shop.failure().task, shop.failure().error) == ("other", "Boom")


class TestBrokerAway:
    """A failure that cannot be told of."""

    def test_is_logged(
        self, app: Celery, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The worker goes on, and the deadline of the request remains."""
        shop.work = raising(Boom())
        ask(shop, worker, within=3600)
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", raising(PublishError("away", connection=True)))

        assert worker.one().fate == "acked"
        assert (worker.waiting(), len(shop.rows())) == ([], 1)
        assert "failed, and order.unpaid is not notified" in caplog.text

    @pytest.mark.parametrize(
        ("error", "is_raised"),
        [
            (PublishError("away", connection=True), True),
            (Unconfirmed("it ended the connection", connection=True), True),
            (caused(Unconfirmed("the queue of order.unpaid is full", connection=True), by=MessageNacked()), False),
            (PublishError("refused", connection=False), False),
            (Boom(), False),
        ],
        ids=repr,
    )
    def test_is_raised_where_it_can_be_done_once_more_unless_that_is_refused(
        self, app: Celery, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception, is_raised: bool
    ) -> None:
        ask(shop, worker)
        sent = worker.waiting()[0]
        request = Context(id=sent.id, task="charge", headers=sent.headers)
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", raising(error))

        with pytest.raises(PublishError) if is_raised else nullcontext():
            notifications.notify_requester(app, request, Boom(), dead_letter="dead_letter", is_retried=True)
        assert not notifications.notify_requester(app, request, Boom())

    def test_silent_broker(
        self, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The main process does not wait indefinitely."""
        shop.work = raising(Boom())
        ask(shop, worker)
        monkeypatch.setattr(notifications, "within", raising(TimeoutError()))

        assert worker.one().fate == "acked"
        assert "perhaps order.unpaid is not notified: the broker is silent" in caplog.text


class TestOtherService:
    """A worker that has this library, and no sagas."""

    def test_opens_no_backend(self, new_app: NewApp, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        shop.work = raising(Boom())
        ask(shop, worker)
        monkeypatch.setattr(registry, "sagas", {})
        monkeypatch.setattr(registry, "steps", {})
        monkeypatch.setattr("celery_sagas.worker.runtime.open_backends", raising(AssertionError("a backend was opened")))
        assert not registry
        worker.one()
        monkeypatch.undo()
        worker.run()

        assert shop.seen() == ["unpaid error"]


class TestStep:
    """A step of a saga, asked by another one: its failure is a dead letter, and is told."""

    @pytest.fixture
    def other(self, shop: Shop) -> Any:
        @shop.saga.starts
        def other(order: Any, order_id: str) -> None:
            shop.ran.append(order_id)
            shop.work(None)

        shop.work = raising(Boom("broken"))
        return other

    def ask(self, shop: Shop, worker: Worker, other: Any) -> Any:
        shop.place(worker, lambda order: order.send(other.s("43"), then="paid", otherwise="unpaid"))
        return only(worker)

    def test_that_fails(self, app: Celery, worker: Worker, shop: Shop, other: Any) -> None:
        self.ask(shop, worker, other)
        worker.run()

        assert shop.seen() == ["unpaid error"]
        assert (shop.failure().task, shop.failure().text) == ("order.other", "broken")
        (dead_letter,) = backend_of(app).dead.list(10)
        assert dead_letter.error == "Boom"

    def test_that_is_delivered_again_after_a_death(
        self, app: Celery, worker: Worker, shop: Shop, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever dead-lettered it died before it could tell."""
        sent = self.ask(shop, worker, other)
        with monkeypatch.context() as patched:
            patched.setattr("celery_sagas.worker.failures.dead_letters.notify_requester", lambda *_, **__: False)
            worker.run()
        assert shop.seen() == []
        worker.deliver_again(sent)
        worker.run()

        assert shop.ran == ["43"]
        assert shop.seen() == ["unpaid error"]
        assert shop.failure().text == "it failed before, and is kept as a dead letter"

    def test_that_is_redelivered_later_has_not_failed(self, app: Celery, worker: Worker, shop: Shop, other: Any) -> None:
        """The store is away as it fails: neither is it dead-lettered, nor told of."""
        self.ask(shop, worker, other)
        backend = backend_of(app)
        add, backend.dead.add = backend.dead.add, raising(store_away())  # type: ignore[method-assign]
        worker.one()
        backend.dead.add = add  # type: ignore[method-assign]
        assert [waiting.task for waiting in worker.waiting()] == ["order.other"]
        assert shop.seen() == []

    def test_delivered_too_often(self, app: Celery, shop: Shop, worker: Worker, other: Any) -> None:
        app.conf.saga_max_deliveries = 1
        sent = self.ask(shop, worker, other)
        backend_of(app).deliveries.count("order.other", sent.id)
        AgainWorker(app).one()
        worker.run()

        assert (shop.failure().kind, shop.failure().error) == ("lost", "TooManyDeliveries")

    def test_aggregator_that_refuses(self, app: Celery, worker: Worker, shop: Shop) -> None:
        @aggregator(size=10, name="readings")
        def readings(batch: Batch[int]) -> None: ...

        shop.place(worker, lambda order: order.send(readings.s(5), then="paid", otherwise="unpaid"))
        sent = only(worker)
        app.control.purge()
        sent.headers = {**sent.headers, MESSAGE_ID: "x" * 256}
        worker.deliver_again(sent)
        worker.run()

        assert (shop.failure().task, shop.failure().error) == ("readings", "InvalidMessage")


def store_away() -> Exception:
    """Return the error of a store that is away."""
    return StoreUnavailable("memory://", "away")


class TestMainProcess:
    """The ends of a task that only a worker's main process sees."""

    def flags(self, shop: Shop, **flags: bool) -> None:
        for name, value in flags.items():
            setattr(shop.charge, name, value)

    @pytest.mark.parametrize(
        ("flags", "fate", "told"),
        [
            ({"acks_late": False}, [], True),
            ({"acks_late": True, "reject_on_worker_lost": False}, ["acked"], True),
            ({"acks_late": True, "reject_on_worker_lost": True}, ["requeued"], False),
        ],
    )
    @pytest.mark.parametrize("error", [WorkerLostError("SIGKILL"), SystemExit(1)], ids=repr)
    def test_lost_process(
        self,
        app: Celery,
        worker: Worker,
        shop: Shop,
        fates: list[str],
        flags: dict[str, bool],
        fate: list[str],
        told: bool,
        error: Any,
    ) -> None:
        self.flags(shop, **flags)
        ask(shop, worker)
        request = request_for(app, fates)
        fail_with(request, error)
        worker.run()

        is_exit_a_failure = isinstance(error, SystemExit) and not hasattr(Request, "_worker_lost_info")  # before Celery 5.7
        if is_exit_a_failure and not told:
            fate, told = ["acked"], True
        assert shop.seen() == (["unpaid lost"] if told else [])
        assert fates == fate

    @pytest.mark.parametrize(
        ("flags", "told"),
        [
            ({"acks_late": False}, True),
            ({"acks_late": True, "acks_on_timeout": True}, True),
            ({"acks_late": True, "acks_on_timeout": False}, False),
        ],
    )
    @pytest.mark.parametrize("pool", ["processes", "greenlets"])
    def test_hard_time_limit(
        self, app: Celery, worker: Worker, shop: Shop, fates: list[str], flags: dict[str, bool], told: bool, pool: str
    ) -> None:
        """A pool of processes tells Celery twice. The answer may have been sent before: it is still waited for."""
        self.flags(shop, **flags)
        if "acks_on_timeout" in flags:
            self.flags(shop, acks_on_failure_or_timeout=flags["acks_on_timeout"])
        ask(shop, worker)
        request = request_for(app, fates)
        if pool == "processes":
            fail_with(request, TimeLimitExceeded(1))
        request.on_timeout(soft=False, timeout=1)

        assert len(worker.waiting()) == told
        worker.run()
        assert shop.seen() == (["unpaid error"] if told else [])
        assert len(shop.pending().requests) == 1
        assert told or "acked" not in fates

    def test_soft_time_limit_is_the_tasks(self, app: Celery, worker: Worker, shop: Shop, fates: list[str]) -> None:
        ask(shop, worker)
        request_for(app, fates).on_timeout(True, 1)

        assert worker.waiting() == []

    def test_terminated(self, app: Celery, worker: Worker, shop: Shop, fates: list[str]) -> None:
        ask(shop, worker)
        fail_with(request_for(app, fates), Terminated(15))
        worker.run()

        assert (shop.failure().kind, shop.failure().text) == ("revoked", "it was terminated")

    def test_retried(self, app: Celery, worker: Worker, shop: Shop, fates: list[str]) -> None:
        ask(shop, worker)
        fail_with(request_for(app, fates), Retry(exc=Boom()))

        assert worker.waiting() == []

    def test_told_before_it_is_acknowledged(self, app: Celery, worker: Worker, shop: Shop, fates: list[str]) -> None:
        ask(shop, worker)
        request = request_for(app, fates)
        waiting: list[int] = []
        request._on_ack = lambda *_: waiting.append(len(worker.waiting()))
        fail_with(request, Boom())

        assert waiting == [1]

    def test_error_comes_by_pickle(self, app: Celery, worker: Worker, shop: Shop, fates: list[str]) -> None:
        ask(shop, worker)
        request = request_for(app, fates)
        request.on_failure(pickle.loads(pickle.dumps(info_of(Boom("far away")))), return_ok=True)
        worker.run()

        assert (shop.failure().error, shop.failure().text) == ("Boom", "far away")

    def test_step_out_of_time(self, app: Celery, worker: Worker, shop: Shop, fates: list[str]) -> None:
        """Its message is dead-lettered first."""

        @shop.saga.starts
        def other(order: Any, order_id: str) -> None: ...

        shop.place(worker, lambda order: order.send(other.s("43"), then="paid", otherwise="unpaid"))
        request = request_for(app, fates, lambda cls: keeping_failures(keeping_failures(cls)))
        fail_with(request, TimeLimitExceeded(1))
        request.on_timeout(soft=False, timeout=1)

        assert fates == ["acked"]
        assert len(worker.waiting()) == 1
        worker.run()
        assert (shop.failure().kind, shop.failure().error) == ("error", "TimeLimitExceeded")

    def test_step_that_cannot_be_dead_lettered(
        self, app: Celery, worker: Worker, shop: Shop, fates: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It goes back to the broker, and has not failed yet."""

        @shop.saga.starts
        def other(order: Any, order_id: str) -> None: ...

        shop.place(worker, lambda order: order.send(other.s("43"), then="paid", otherwise="unpaid"))
        request = request_for(app, fates, lambda cls: keeping_failures(keeping_failures(cls)))
        monkeypatch.setattr(backend_of(app).dead, "add", raising(store_away()))
        fail_with(request, TimeLimitExceeded(1))
        request.on_timeout(soft=False, timeout=1)

        assert (fates, worker.waiting()) == (["requeued"], [])

    def test_users_own_request_class(self) -> None:
        class Timed(Request):
            """A user's own."""

        cls = keeping_failures(Timed)
        assert issubclass(cls, Timed)
        assert issubclass(cls, FailingRequest)
        assert keeping_failures(cls) is cls
        assert keeping_failures("celery.worker.request:Request").__mro__[2] is Request


def test_all_requests_of_a_worker_see_to_failures(app: Celery, shop: Shop) -> None:
    """Each of its tasks may be asked."""
    add_bootstep(SimpleNamespace(app=app, _process_task=print))

    for name in ("charge", "order.paid", "celery_sagas.publish", "celery.chain"):
        assert issubclass(app.tasks[name].Request, FailingRequest)
    assert not issubclass(Request, FailingRequest)


class Consumer:
    """A worker's consumer, as far as unknown tasks concern it."""

    connection_errors = ()
    event_dispatcher = None

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.rejected: list[Any] = []

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Reject a message."""
        self.rejected.append(message)

    def create_task_handler(self) -> None:
        """Return what takes messages: none comes this way."""

    on_invalid_task = on_decode_error = create_task_handler


class TestUnknownTask:
    """A task that no worker knows which gets its message."""

    def meet(self, app: Celery, worker: Worker) -> tuple[Consumer, Any]:
        """Have a worker meet the message that waits."""
        waiting = only(worker)
        app.control.purge()
        consumer = Consumer(app)
        KeepUnknownTasks(consumer).create(consumer)
        payload = (waiting.args, waiting.kwargs, waiting.embed)
        message = SimpleNamespace(headers=dict(waiting.headers), payload=payload, properties={})
        message.reject_log_error = lambda *_: consumer.rejected.append(message)
        consumer.on_unknown_task(None, message, KeyError(waiting.task))
        assert consumer.rejected == [message]
        return consumer, message

    def test_is_told_of(self, app: Celery, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(app.signature("absent", (5,)), then="paid", otherwise="unpaid"))
        request = only(worker).id
        self.meet(app, worker)
        worker.run()

        failure = shop.failure()
        assert (failure.kind, failure.task, failure.task_id, failure.error) == ("error", "absent", request, "NotRegistered")
        assert backend_of(app).dead.list(10) == []

    @pytest.mark.parametrize("task", ["order.absent", "readings"])
    def test_step_or_aggregator(self, app: Celery, worker: Worker, shop: Shop, task: str) -> None:
        shop.place(worker, lambda order: order.send(app.signature(task, ("43",)), then="paid", otherwise="unpaid"))
        self.meet(app, worker)
        worker.run()

        assert shop.failure().task == task
        assert backend_of(app).dead.list(10) == []

    def test_step_that_gets_an_answer(self, app: Celery, worker: Worker, shop: Shop) -> None:
        """The answer is kept as well."""
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid", otherwise="unpaid"))
        worker.one()
        self.meet(app, worker)
        worker.run()

        (dead_letter,) = backend_of(app).dead.list(10)
        failure = shop.failure()
        assert (dead_letter.task, failure.kind, failure.dead_letter) == ("order.paid", "unhandled", dead_letter.id)

    def test_is_kept_if_nobody_is_to_be_told(self, app: Celery, worker: Worker, shop: Shop) -> None:
        shop.place(worker, lambda order: order.send(app.signature("absent", (5,)), then="paid"))
        self.meet(app, worker)

        assert [dead_letter.task for dead_letter in backend_of(app).dead.list(10)] == ["absent"]
        assert (worker.waiting(), len(shop.pending().requests)) == ([], 1)

    def test_is_kept_if_nobody_can_be_told(
        self, app: Celery, worker: Worker, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.place(worker, lambda order: order.send(app.signature("absent", (5,)), then="paid", otherwise="unpaid"))
        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", raising(PublishError("away", connection=True)))
        self.meet(app, worker)

        assert [dead_letter.task for dead_letter in backend_of(app).dead.list(10)] == ["absent"]


@pytest.mark.parametrize(
    "header",
    ["text", "{", "[]", "5", "null", '{"saga": "order"}', 5, None, {}, "x" * 40_000, '{"saga":"o","instance":"i","request":"r"}'],
    ids=lambda header: repr(header)[:20],
)
def test_malformed_return_address_is_none(app: Celery, worker: Worker, shop: Shop, header: object) -> None:
    """Anybody may send anything."""
    shop.work = raising(Boom())
    shop.charge.apply_async(headers={RETURN_ADDRESS: header})

    assert worker.one().fate == "acked"
    assert worker.waiting() == []
