"""What we believe of Celery and kombu: where one of these fails, so do we."""

import inspect
import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from billiard.pool import ApplyResult, Pool, ResultHandler, TimeoutHandler
from billiard.pool import Worker as PoolProcess
from billiard.sharedctypes import Value
from celery import Celery, Task, _state, group, shared_task, signals
from celery.app import trace
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate
from celery.local import PromiseProxy, Proxy
from celery.utils.dispatch import Signal
from celery.worker import WorkController
from celery.worker.consumer import Consumer, Gossip
from celery.worker.request import Request
from celery.worker.strategy import default as default_strategy
from kombu import Connection, Message
from kombu.transport.redis import QoS as RedisQoS
from kombu.utils.json import dumps, loads

from celery_sagas.worker import celery_internals
from celery_sagas.worker.isolation import local, publishing_to
from tests.apps import NewApp, Worker
from tests.servers import unique
from tests.waiting import wait_until


class Failure(Exception):
    """What a task raises."""


class TestInternals:
    """What ``shared_task`` is made of, and ``worker/celery_internals.py`` leans on."""

    def test_current_app_is_the_app_itself(self, app: Celery) -> None:
        assert celery_internals.current_app() is app
        assert type(celery_internals.current_app()) is Celery

    def test_stand_in_for_an_app(self, new_app: NewApp, monkeypatch: pytest.MonkeyPatch) -> None:
        """Celery makes it where nobody has, and nobody makes one like it."""
        ours = new_app()
        monkeypatch.setattr(_state, "default_app", None)
        monkeypatch.setattr(_state._tls, "current_app", None, raising=False)
        stand_in = celery_internals.current_app()

        assert celery_internals.is_stand_in(stand_in)
        assert ours in celery_internals.other_apps(stand_in)
        ours.set_default()
        assert not celery_internals.is_stand_in(ours)
        with Celery("default", set_as_current=False) as another:
            another.set_default()
            assert not celery_internals.is_stand_in(another)

    def test_tasks_with_a_call_of_their_own(self, app: Celery) -> None:
        """A worker puts a ``__call__`` of Celery's into the place of that of all tasks."""

        class Base(Task):  # type: ignore[type-arg]
            abstract = True

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs)

        def work() -> None: ...

        own, usual = app.task(work, name="own", base=Base), app.task(work, name="usual")
        app.finalize()

        assert [celery_internals.has_own_call(task) for task in (own, usual)] == [True, False]
        trace._install_stack_protection()
        try:
            assert [celery_internals.has_own_call(task) for task in (own, usual)] == [True, False]
        finally:
            trace.reset_worker_optimizations(app)

    def test_apps_that_are_finalised(self, new_app: NewApp) -> None:
        first, second = new_app(), new_app()
        first.finalize()

        assert first in celery_internals.finalised_apps()
        assert second not in celery_internals.finalised_apps()
        first.close()
        assert first not in celery_internals.finalised_apps()

    def test_every_app_calls_back_when_it_is_finalised(self, new_app: NewApp) -> None:
        seen: list[Celery] = []
        celery_internals.on_finalise(seen.append)
        first, second = new_app(), new_app()
        assert seen == []

        first.finalize()
        second.finalize()
        assert seen == [first, second]

    def test_callbacks_have_no_order(self) -> None:
        """So that one table of our own has it."""
        assert isinstance(_state._on_app_finalizers, set)

    def test_last_callback_comes_after_all_tasks(self, app: Celery) -> None:
        seen: list[list[str]] = []
        celery_internals.on_finalise(
            lambda app: celery_internals.after_all_tasks(app, lambda app: seen.append(sorted(app._tasks))) if not seen else None
        )

        @app.task(name="pending")
        def pending() -> None: ...

        @shared_task(name="shared")
        def shared() -> None: ...

        app.finalize()
        assert {"pending", "shared"} <= set(seen[0])

    def test_errors_of_the_last_callback_pass(self, app: Celery) -> None:
        def fail(app: Celery) -> None:
            raise Failure

        celery_internals.after_all_tasks(app, fail)

        with pytest.raises(Failure):
            app.finalize()

    def test_attribute_error_of_the_last_callback_is_raised_as_another(self, app: Celery) -> None:
        """Celery takes one for the sign of what is no promise, and drops it."""
        celery_internals.after_all_tasks(app, lambda app: app.no_such_attribute)

        with pytest.raises(RuntimeError, match=r"the tasks of .+ cannot be registered: .+no_such_attribute") as caught:
            app.finalize()
        assert isinstance(caught.value.__cause__, AttributeError)

    def test_looking_at_registered_tasks_finalises_nothing(self, app: Celery) -> None:
        assert celery_internals.registered(app, "x") is None
        assert not app.finalized
        celery_internals.unregister(app, "x")

    def test_added_task_is_bound_and_complete(self, app: Celery) -> None:
        def function(self: Any, x: int) -> Any:
            return self.name, x

        app.finalize()
        celery_internals.add_task(app, function, name="added", bind=True, max_retries=7)

        task = app.tasks["added"]
        assert (task.app, task.max_retries, task(1)) == (app, 7, ("added", 1))
        celery_internals.unregister(app, "added")
        assert "added" not in app.tasks

    def test_registering_a_name_again_keeps_the_first(self, app: Celery) -> None:
        """So that we remove it before."""
        app.finalize()
        for value in (1, 2):
            celery_internals.unregister(app, "again")
            celery_internals.add_task(app, self.returning(value), name="again")

        assert app.tasks["again"]() == 2

    @staticmethod
    def returning(value: int) -> Any:
        """Return a function: Celery takes no lambda."""

        def function() -> int:
            return value

        return function

    def test_promise_is_evaluated_when_the_app_is_finalised(self, app: Celery) -> None:
        seen: list[str] = []
        app._pending.append(PromiseProxy(seen.append, ("evaluated",)))
        app.finalize()

        assert seen == ["evaluated"]

    def test_promise_calls_back_when_it_is_evaluated(self, app: Celery) -> None:
        task: Any = app.task(name="task")(self.returning(1))
        called: list[str] = []
        task.__then__(called.append, "then")
        assert (type(task), task.__evaluated__(), called) == (PromiseProxy, False, [])

        app.finalize()
        assert (task.__evaluated__(), called) == (True, ["then"])

    def test_proxy_of_a_shared_task_looks_it_up_in_the_current_app(self, new_app: NewApp) -> None:
        @shared_task(name="looked up")
        def shared() -> None: ...

        apps = new_app(), new_app()
        for each in apps:
            with celery_internals.as_current_app(each):
                assert (type(shared), shared.name, shared.app) == (Proxy, "looked up", each)

    def test_app_task_is_shared_with_every_app(self, new_app: NewApp) -> None:
        first, second = new_app(), new_app()

        @first.task(name="of the first")
        def task() -> None: ...

        assert "of the first" in second.tasks


class TestRun:
    """How a step's ``run`` looks to Celery."""

    @staticmethod
    def wrapped(function: Any) -> Any:
        """Wrap a function as a step is wrapped."""

        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return args, kwargs

        parameters = list(inspect.signature(function).parameters.values())
        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        run.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
        return run

    @pytest.mark.parametrize(
        ("args", "kwargs", "fits"),
        [
            ((1,), {}, True),
            ((1, 2), {}, True),
            ((1,), {"b": 2, "c": 3}, True),
            ((), {"a": 1}, True),
            ((), {}, False),
            ((1, 2, 3), {}, False),
            ((1,), {"a": 1}, False),
            ((1,), {"d": 1}, False),
        ],
    )
    def test_signature_of_run_is_checked_at_the_call(
        self, app: Celery, args: tuple[Any, ...], kwargs: dict[str, Any], fits: bool
    ) -> None:
        def function(a: int, b: int = 0, *, c: int = 0) -> None: ...

        app.finalize()
        celery_internals.add_task(app, self.wrapped(function), name="wrapped", bind=True)
        task = app.tasks["wrapped"]

        if fits:
            task.apply_async(args, kwargs)
        else:
            with pytest.raises(TypeError):
                task.apply_async(args, kwargs)

    def test_wrapping_run_keeps_the_fast_path(self, app: Celery) -> None:
        """Celery calls ``run`` itself unless ``__call__`` is overridden."""

        class Custom(Task):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return super().__call__(*args, **kwargs)

        app.finalize()
        celery_internals.add_task(app, self.wrapped(print), name="wrapped", bind=True)
        celery_internals.add_task(app, self.wrapped(print), name="custom", bind=True, base=Custom)

        assert not trace.task_has_custom(app.tasks["wrapped"], "__call__")
        assert trace.task_has_custom(app.tasks["custom"], "__call__")

    def test_direct_call_has_no_id(self, app: Celery) -> None:
        @app.task(bind=True)
        def task(self: Any) -> Any:
            return self.request.id, self.request.called_directly, self.request.is_eager

        assert task() == (None, True, False)

    def test_eager_call_has_an_id_and_its_headers_apart(self, eager: Celery) -> None:
        @eager.task(bind=True)
        def task(self: Any) -> Any:
            request = self.request
            return request.id is not None, request.called_directly, request.is_eager, request.headers, request.get("x")

        assert task.apply_async(headers={"x": 1}).get() == (True, False, True, {"x": 1}, None)

    def test_retry_needs_positional_arguments_of_signature(self) -> None:
        """``signature_from_request`` passes args, kwargs and options by position."""
        source = inspect.getsource(Task.signature_from_request)
        assert "args, kwargs, options, type=self" in " ".join(source.split())


class TestSignals:
    """The bracket around a task, and what a receiver cannot do."""

    def test_prerun_and_postrun_bracket_every_end(self, app: Celery, worker: Worker) -> None:
        seen: list[str] = []

        def prerun(task_id: str, **_: Any) -> None:
            seen.append("prerun")

        def postrun(task_id: str, **_: Any) -> None:
            seen.append("postrun")

        @app.task(name="task")
        def task(number: int) -> None:
            seen.append("run")
            if number:
                raise [None, Failure(), Ignore(), Reject(), Retry()][number]  # type: ignore[misc]

        signals.task_prerun.connect(prerun)
        signals.task_postrun.connect(postrun)
        try:
            for number in range(5):
                task.delay(number)
            worker.run()
            task.apply((1,))
        finally:
            signals.task_prerun.disconnect(prerun)
            signals.task_postrun.disconnect(postrun)

        assert seen == ["prerun", "run", "postrun"] * 6

    def test_request_is_there_in_both(self, app: Celery, worker: Worker) -> None:
        seen: list[Any] = []

        def receiver(task: Any, **_: Any) -> None:
            task.request.__dict__.setdefault("mine", object())
            seen.append((task.request.id, task.request.__dict__["mine"]))

        @app.task(name="task")
        def task() -> None: ...

        for signal in (signals.task_prerun, signals.task_postrun):
            signal.connect(receiver)
        sent = task.delay()
        worker.run()
        for signal in (signals.task_prerun, signals.task_postrun):
            signal.disconnect(receiver)

        assert seen[0] == seen[1]
        assert seen[0][0] == sent.id

    def test_receivers_errors_are_swallowed(self, caplog: pytest.LogCaptureFixture) -> None:
        signal = Signal(name="test")

        def fail(**_: Any) -> None:
            raise Failure

        signal.connect(fail)
        signal.send(sender=None)

        assert "Failure" in caplog.text

    def test_dispatch_uid_connects_once(self) -> None:
        seen: list[int] = []
        signal = Signal(name="test")
        for number in range(2):
            signal.connect(lambda number=number, **_: seen.append(number), dispatch_uid="one", weak=False)
        signal.send(sender=None)

        assert len(seen) == 1

    def test_publishing_tells_the_id_and_takes_headers(self, app: Celery, worker: Worker) -> None:
        def receiver(headers: dict[str, Any], **_: Any) -> None:
            headers["seen"] = headers["id"]

        signals.before_task_publish.connect(receiver)
        try:
            sent = app.send_task("task")
        finally:
            signals.before_task_publish.disconnect(receiver)

        assert worker.waiting()[0].headers["seen"] == sent.id

    def test_publishing_is_not_told_in_eager_mode(self, eager: Celery) -> None:
        seen: list[Any] = []

        def receiver(**_: Any) -> None:
            seen.append(1)

        @eager.task
        def task() -> None: ...

        signals.before_task_publish.connect(receiver)
        task.delay()
        signals.before_task_publish.disconnect(receiver)

        assert seen == []

    def test_worker_init_comes_before_the_blueprint(self) -> None:
        """And after the task modules: a bootstep that is added then is the worker's."""
        seen = subprocess.run([sys.executable, "-W", "ignore", "-c", _WORKER], capture_output=True, text=True, check=True)
        at_init, order = json.loads(seen.stdout.splitlines()[-1])

        assert at_init == {"blueprint": False, "finalized": True}
        assert order.index("Pool") < order.index("Added") < order.index("Consumer")


class TestMessages:
    """What survives, and what becomes of a delivery."""

    def test_custom_headers_survive_retry(self, app: Celery, worker: Worker) -> None:
        @app.task(name="task", bind=True)
        def task(self: Any) -> None:
            raise self.retry()

        sent = task.apply_async(headers={"tenant": "t"})
        worker.one()

        (again,) = worker.waiting()
        assert (again.id, again.headers["tenant"], again.headers["retries"]) == (sent.id, "t", 1)

    @pytest.mark.parametrize(
        ("error", "fate"),
        [(None, "acked"), (Failure(), "acked"), (Ignore(), "acked"), (Reject(), "rejected"), (Reject(requeue=True), "requeued")],
    )
    def test_fate_of_a_delivery(self, app: Celery, worker: Worker, error: Exception | None, fate: str) -> None:
        @app.task(name="task", acks_late=True)
        def task() -> None:
            if error is not None:
                raise error

        task.delay()
        assert worker.one().fate == fate

    def test_autoretry_wraps_outside_run_and_spares_ignore_alone(self, app: Celery, worker: Worker) -> None:
        """``Reject`` is caught, so that we name it in ``dont_autoretry_for``."""

        @app.task(name="task", autoretry_for=(Exception,), default_retry_delay=0, max_retries=1)
        def task(number: int) -> None:
            raise [Ignore(), Reject(requeue=True)][number]

        task.delay(0)
        assert worker.one().fate == "acked"
        assert worker.waiting() == []
        task.delay(1)
        worker.one()
        assert len(worker.waiting()) == 1
        assert task._orig_run is not task.run

    def test_failed_publish_of_retry_rejects_without_requeue(
        self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The message is lost: ours is not put off by ``retry()``."""

        @app.task(name="task", bind=True, acks_late=True)
        def task(self: Any) -> None:
            def fail(*_: Any, **__: Any) -> None:
                raise OSError

            monkeypatch.setattr(type(self), "apply_async", fail)
            raise self.retry()

        task.delay()
        assert worker.one().fate == "rejected"

    def test_worker_hands_requests_over_by_an_attribute_of_its_own(self) -> None:
        """Which may be replaced on the instance, before its pool is made."""
        handed: list[str] = []
        worker = SimpleNamespace(_quick_acquire=lambda process, request: process(request), _process_task=handed.append)
        WorkController._process_task_sem(worker, "request")

        assert handed == ["request"]

    def test_worker_gives_the_headers_in_the_request(self, app: Celery, worker: Worker) -> None:
        seen: list[Any] = []

        @app.task(name="task", bind=True)
        def task(self: Any) -> None:
            seen.append((self.request.get("tenant"), self.request.headers.get("tenant"), self.request.get("missing")))

        task.apply_async(headers={"tenant": "t"})
        worker.run()

        assert seen == [("t", "t", None)]


class TestJson:
    """kombu's encoder, and the result backend."""

    def test_objects_with_json_method(self) -> None:
        class Money:
            def __json__(self) -> dict[str, int]:
                return {"cents": 5}

        assert json.loads(dumps([Money()])) == [{"cents": 5}]

    @pytest.mark.parametrize("value", [Decimal("9.90"), datetime(2030, 1, 1, tzinfo=UTC)])
    def test_values_that_come_back(self, value: object) -> None:
        assert loads(dumps([value])) == [value]

    def test_dictionaries_that_are_decoded_specially(self) -> None:
        assert loads('{"__type__": "decimal", "__value__": "1"}') == Decimal(1)

    def test_result_backend_rebuilds_errors_from_their_arguments(self, app: Celery) -> None:
        backend = app.backend
        error = backend.exception_to_python(json.loads(json.dumps(backend.prepare_exception(_Valued("a", 5), serializer="json"))))

        assert type(error) is _Valued
        assert (error.name, error.number) == ("a", 5)

    def test_settings_of_the_user_are_read_with_their_namespace(self, new_app: NewApp) -> None:
        class Settings:
            CELERY_SAGA_BACKEND = "memory://x"

        app = new_app()
        django = Celery("django", set_as_current=False)
        django.config_from_object(Settings, namespace="CELERY")

        assert "CELERY_SAGA_BACKEND" in list(django.conf.keys())  # first of all: it configures the app
        assert django.conf["CELERY_SAGA_BACKEND"] == "memory://x"
        assert django.conf.prefix == "CELERY_"
        assert not app.conf.prefix
        django.close()


_WORKER = """
import json
from celery import Celery, bootsteps, signals

class Added(bootsteps.StartStopStep):
    requires = ("celery.worker.components:Pool",)

@signals.worker_init.connect
def receiver(sender, **_):
    seen.update(blueprint=sender.blueprint is not None, finalized=sender.app.finalized)
    sender.app.steps["worker"].add(Added)

seen = {}
worker = Celery(broker="memory://").Worker(pool="solo", hostname="test@test")
print(json.dumps([seen, [type(step).__name__ for step in worker.blueprint.order]]))
"""


class _Valued(Exception):
    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.name = name
        self.number = number


class TestFailures:
    """What dead letters lean on."""

    def test_run_may_be_wrapped_again_outside_of_autoretry(self, app: Celery, worker: Worker) -> None:
        """The tracer takes the ``run`` that the task has by then."""
        app.finalize()

        def fail() -> None:
            raise Failure

        celery_internals.add_task(app, fail, name="fails", autoretry_for=(Failure,), max_retries=1, default_retry_delay=0)
        task, seen = app.tasks["fails"], []
        inner = task.run

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return inner(*args, **kwargs)
            except Exception as exc:
                seen.append(type(exc))
                raise

        task.run = run
        task.delay()
        worker.run()

        assert seen == [Retry, Failure]

    def test_own_choices_of_a_task_have_one_base(self) -> None:
        assert all(issubclass(each, TaskPredicate) for each in (Ignore, Reject, Retry))

    def test_retry_that_cannot_be_published_is_rejected_for_good(
        self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So that a step's ``retry`` has the broker keep it."""

        @app.task(name="retries", bind=True)
        def task(self: Any) -> None:
            raise self.retry()

        task.delay()

        def fail(*_: Any, **__: Any) -> None:
            raise OSError

        monkeypatch.setattr(app.tasks["retries"], "apply_async", fail)
        delivered = worker.one()

        assert isinstance(delivered.error, Reject)
        assert not delivered.error.requeue

    def test_pool_reports_a_time_limit_twice_before_it_kills(self) -> None:
        """First ``on_failure``, then ``on_timeout``, so that the message is settled while the process is still there."""
        calls: list[str] = []
        result = ApplyResult(
            {},
            None,
            timeout_callback=lambda soft, timeout: calls.append("on_timeout"),
            error_callback=lambda _: calls.append("on_failure"),
        )
        result._worker_pid, result._timeout = 1, 1.0
        handler = TimeoutHandler([], {}, None, None)
        handler._process_by_pid = lambda pid: (object(), 0)  # type: ignore[method-assign]
        handler._trywaitkill = lambda process: calls.append("kill")  # type: ignore[method-assign]

        handler.on_hard_timeout(result)

        assert calls == ["on_failure", "on_timeout", "kill"]

    def test_process_of_a_pool_that_ends_takes_a_lock_that_the_pool_takes(self) -> None:
        """Killed while it holds that, it has the pool wait indefinitely.

        The runbook tells of it ("A worker does not end"), and ``tests/integration/apps/deployed.py`` works around it: once this
        fails since a process looks without the lock, both can go.
        """
        taken: list[str] = []
        lock = Mock(acquire=lambda *_: taken.append("acquired"), release=lambda: taken.append("released"))

        counter = Value("i", 1, lock=lock)

        assert PoolProcess._ensure_messages_consumed(Mock(on_ready_counter=counter), completed=1)
        assert taken == ["acquired", "released"]
        assert "on_ready_counter = self._ctx.Value('i')" in inspect.getsource(Pool)
        assert "with on_ready_counter.get_lock()" in inspect.getsource(ResultHandler)

    def test_request_that_was_settled_is_settled_once(self, app: Celery) -> None:
        """What a subclass has acknowledged, ``on_failure`` and ``on_timeout`` do not reject, and the other way round."""
        fates: list[str] = []

        @app.task(name="timed", acks_late=True)
        def task() -> None: ...

        def request() -> Request:
            task.delay()
            with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
                message = queue.get_nowait()
                message.ack()
            return Request(message, app=app, on_ack=lambda *_: fates.append("ack"), on_reject=lambda *_: fates.append("reject"))

        first, second = request(), request()
        first.acknowledge()
        first.reject(requeue=True)
        second.reject(requeue=True)
        second.acknowledge()

        assert fates == ["ack", "reject"]

    def test_strategy_subclasses_the_tasks_request_class(self) -> None:
        """Which is read when the strategy is made."""
        assert "symbol_by_name(task.Request)" in inspect.getsource(default_strategy)

    def test_unknown_task_is_rejected_before_its_signal(self) -> None:
        """A receiver of ``task_unknown`` comes too late to keep the message."""
        events: list[str] = []
        message = SimpleNamespace(
            headers={"id": "m1", "task": "nosuch"}, properties={}, delivery_info={}, body="", payload=None,
            reject_log_error=lambda *_: events.append("rejected"),
        )  # fmt: skip
        with Celery(set_as_current=False) as app:
            consumer = Mock(app=app, connection_errors=(), event_dispatcher=None)

            def hear(**_: object) -> None:
                events.append("told")

            signals.task_unknown.connect(hear)
            try:
                Consumer.on_unknown_task(consumer, None, message, KeyError("nosuch"))
            finally:
                signals.task_unknown.disconnect(hear)

        assert events == ["rejected", "told"]

    def test_consumer_takes_its_own_attribute_for_unknown_tasks(self) -> None:
        """One that a bootstep has put there: it is read when the consumer begins to consume."""
        seen: list[tuple[Any, ...]] = []
        consumer = Mock(strategies={}, on_unknown_task=lambda *given: seen.append(given))
        message = SimpleNamespace(headers={"task": "nosuch"})

        Consumer.create_task_handler(consumer)(message)

        assert [given[:2] for given in seen] == [(None, message)]

    @pytest.mark.parametrize(("payload", "error"), [({}, KeyError), ([], TypeError)], ids=repr)
    def test_gossip_survives_no_event_that_names_no_host(self, payload: object, error: type[Exception]) -> None:
        """It ends the worker: the docs say so, and how to do without."""
        message = SimpleNamespace(delivery_info={"routing_key": "worker.online"}, headers={}, payload=payload)

        with pytest.raises(error):
            Gossip.on_message(Mock(event_handlers={}), Mock(), message)


class TestRedis:
    """What kombu does with a list."""

    def test_while_a_message_is_taken_it_is_nowhere(self, redis_url: str) -> None:
        """Whoever dies then loses it: the gap of which *guarantees* tells."""
        name = unique("taken")
        with Connection(redis_url, transport_options={"unacked_key": f"{name}-unacked"}) as connection:
            channel: Any = connection.default_channel
            connection.Producer().publish("", routing_key=name)
            channel.basic_consume(name, no_ack=False, callback=Mock(), consumer_tag=name)
            channel.connection.cycle._client_registered(channel, channel.client, "BRPOP")  # which gives it a connection
            channel._brpop_start()
            with channel._create_client() as other:
                wait_until(lambda: other.llen(name) == 0, "the end of the list")
                noted = [other.hlen(channel.unacked_key)]
                channel._brpop_read()
                noted.append(other.hlen(channel.unacked_key))
            channel.qos.ack(next(iter(channel.qos._delivered)))

        assert noted == [0, 1]


class TestBatches:
    """What batches of messages lean on."""

    def test_acknowledging_on_redis_is_two_removals(self, redis_url: str) -> None:
        """``worker/batches/acknowledging.py`` removes many at once."""
        source = inspect.getsource(RedisQoS._remove_from_indices)
        assert "zrem(self.unacked_index_key" in source
        assert "hdel(self.unacked_key" in source
        assert "super().ack(delivery_tag)" in inspect.getsource(RedisQoS.ack)
        with Connection(redis_url) as connection, connection.channel() as channel:
            assert {channel.qos.unacked_key, channel.qos.unacked_index_key} == {"unacked", "unacked_index"}

    def test_an_acknowledged_message_has_a_state(self) -> None:
        assert "_state = 'ACK'" in inspect.getsource(Message.ack)

    def test_acknowledgements_are_called_soon(self) -> None:
        """In a way of their own, if there is one: it waits for nothing in a worker without an event loop."""
        source = inspect.getsource(Consumer.create_task_handler)
        assert ("call_soon_ack = self.call_soon_ack" in source) == hasattr(Consumer, "call_soon_ack")
        assert "call_soon" in source

    def test_tasks_wait_for_a_place_of_the_pool(self) -> None:
        assert "self._quick_acquire(self._process_task, req)" in inspect.getsource(WorkController._process_task_sem)
        assert "self._quick_release()" in inspect.getsource(WorkController._process_task)

    def test_timer_runs_tasks(self) -> None:
        """Without an event loop it has a thread of its own, or a greenlet, which may wait for a place of the pool."""
        source = inspect.getsource(default_strategy)
        assert "call_at = consumer.timer.call_at" in source
        assert "apply_eta_task, (req,)" in source
        assert "self.on_task_request(task)" in inspect.getsource(Consumer.apply_eta_task)

    def test_pool_releases_a_place_before_it_reports_on_the_job(self) -> None:
        source = inspect.getsource(ResultHandler._make_methods)
        assert source.index("putlock.release()") < source.index("item._set(i, obj)")

    def test_prefetch_count_is_restored_by_acknowledgements(self) -> None:
        assert "ack_log_error_promise.then(self._restore_prefetch_count" in inspect.getsource(Consumer.create_task_handler)
        assert Consumer.restart_count == -1


class TestIsolation:
    """What keeps the messages and results of an app in a process, see ``celery_sagas.worker.isolation``."""

    def test_every_message_is_published_by_a_producer_of_the_pool(self, app: Celery) -> None:
        accepted: list[str] = []

        @app.task(name="work")
        def work(*_: object) -> None: ...

        with publishing_to(lambda app, content, headers, serializer, queue: accepted.append(headers["task"])), local(app):
            work.delay()
            work.apply_async((1,), countdown=3)
            app.send_task("elsewhere")
            (work.s(1) | work.s(2)).apply_async()
            group(work.s(1), work.s(2)).apply_async()
        assert accepted == ["work", "work", "elsewhere", "work", "work", "work"]

    def test_results_and_tracers_know_the_backend(self, app: Celery) -> None:
        @app.task
        def work() -> None: ...

        app.finalize()
        before = app.backend
        work.__trace__ = trace.build_tracer(work.name, work, app=app)
        with local(app):
            assert app.backend is not before
            assert work.__trace__ is None
            work.__trace__ = trace.build_tracer(work.name, work, app=app)
        assert app.backend is before
        assert work.__trace__ is None
