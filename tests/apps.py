"""Celery apps for tests: each with a broker and a backend of its own, and a worker that takes one message at a time."""

import pickle
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty
from types import SimpleNamespace
from typing import Any, Protocol
from weakref import WeakSet

import pytest
from celery import Celery, _state
from celery.concurrency.solo import TaskPool
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request
from kombu import pools

from celery_sagas.core.registry import registry
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.ports import Backend, SagaStore
from celery_sagas.worker import timeouts
from celery_sagas.worker.batches.steps import consumer_for
from celery_sagas.worker.failures.requests import keeping_failures
from celery_sagas.worker.requests.answers import confirm_answers
from celery_sagas.worker.runtime import close_runtime, runtime_of
from celery_sagas.worker.sessions import current_session
from tests.matrices import IS_SINGLE


class NewApp(Protocol):
    """Makes an app; the last one made is the current app."""

    def __call__(self, *, eager: bool = False, **settings: Any) -> Celery: ...


@contextmanager
def definitions_of_their_own() -> Iterator[None]:
    """Put aside sagas, steps and apps, which are global to a process, and forget afterwards what was defined meanwhile.

    Shared tasks are forgotten, too. No other app is active: Celery gives a new one at once to each that is finalised.
    """
    kept = dict(registry.sagas), dict(registry.steps), dict(registry.aggregators), list(registry.subscribers)
    shared, apps, default = set(_state._on_app_finalizers), _state._apps, _state.default_app
    current = _state._tls.current_app
    _state._apps, _state.default_app = WeakSet(), None
    _state._set_current_app(None)
    for table in (registry.sagas, registry.steps, registry.aggregators, registry.subscribers):
        table.clear()
    try:
        yield
    finally:
        registry.sagas, registry.steps, registry.aggregators, registry.subscribers = kept
        _state._on_app_finalizers.intersection_update(shared)
        _state._apps, _state.default_app = apps, default
        _state._set_current_app(current)


@pytest.fixture
def definitions() -> Iterator[None]:
    """Sagas, steps, shared tasks and apps of this test alone."""
    with definitions_of_their_own():
        yield


@pytest.fixture
def new_app(definitions: None) -> Iterator[NewApp]:
    """Apps of this test alone; afterwards none of them has a connection."""
    apps: list[Celery] = []

    def make(*, eager: bool = False, **settings: Any) -> Celery:
        app = Celery(f"test-{len(apps)}", broker="memory://", backend="cache+memory://", task_cls=settings.pop("task_cls", None))
        app.conf.update(
            saga_backend=f"memory://{uuid.uuid4()}",
            saga_step_retries=settings.pop("saga_step_retries", 0),
            task_default_queue=f"queue-{uuid.uuid4()}",
            task_always_eager=eager,
            task_eager_propagates=eager,
            **settings,
        )
        apps.append(app)
        return app

    yield make
    for app in apps:
        close_runtime(app)
        app.close()
    pools.reset()  # Celery leaves connections to the next app of the process, which drops them unclosed if it has no limit
    assert current_session() is None, "a session was left open"


@pytest.fixture
def app(new_app: NewApp) -> Celery:
    """An app whose messages wait in a queue for the worker."""
    return new_app()


@pytest.fixture
def eager(new_app: NewApp) -> Celery:
    """An app that runs every task at once, and lets errors pass."""
    return new_app(eager=True)


@pytest.fixture(params=["task"] if IS_SINGLE else ["task", "batch"])
def worker(request: pytest.FixtureRequest, app: Celery) -> "Worker":
    """A worker of the app, that runs each message as a task, or hands it out in a batch first."""
    return Worker(app, is_batching=request.param == "batch")


@pytest.fixture
def at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have steps take no time: a timeout that is due before its step ends is sent at once, and does not wait in the outbox."""
    now = time.time()
    monkeypatch.setattr(timeouts, "time_s", lambda: now)


#: For tests that count the runs of a message, or look at what Celery alone makes of a task.
as_tasks = pytest.mark.parametrize("worker", ["task"], indirect=True)


def backend_of(app: Celery) -> Backend:
    """Return the backend that an app has open."""
    return runtime_of(app).backend


@dataclass
class Delivered:
    """What became of one delivery of a message."""

    task: str
    id: str
    headers: Mapping[str, Any]
    args: Any
    kwargs: Any
    embed: Mapping[str, Any]  #: what follows the task
    fate: str = "kept"  #: "acked", "rejected", "requeued", or "kept" by the broker
    error: BaseException | None = None
    frames: Sequence[str] = ()  #: of the error, as the worker's main process gets them
    size: int = 0  #: of the error with its frames, in bytes


@dataclass
class Worker:
    """Takes messages off an app's queue and runs them as a worker's pool does, whatever their eta."""

    app: Celery
    done: list[Delivered] = field(default_factory=list)
    is_batching: bool = False  #: whether steps are handled in batches first, each of one message

    def waiting(self) -> list[Delivered]:
        """Return the messages in the queue, which stay there."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue(self.app.conf.task_default_queue) as queue:
            return [_delivered(message) for message in _take_all(queue)]

    def run(self, limit: int = 50) -> list[Delivered]:
        """Run messages until none is left; return what became of them."""
        begun = len(self.done)
        for _ in range(limit):
            if self.step() is None:
                return self.done[begun:]
        raise AssertionError(f"more than {limit} messages: {[delivered.task for delivered in self.done[begun:]]}")

    def one(self) -> Delivered:
        """Run one message."""
        delivered = self.step()
        assert delivered is not None, "the queue is empty"
        return delivered

    def step(self) -> Delivered | None:
        """Run one message, if there is one."""
        with self.app.connection_for_read() as connection, connection.SimpleQueue(self.app.conf.task_default_queue) as queue:
            try:
                message = queue.get_nowait()
            except Empty:
                return None
            delivered = _delivered(message)
            self._execute(message, delivered)
            for backend in (runtime := runtime_of(self.app)).backends:
                runtime.dispatcher_of(backend).confirmations.settle()  # as happens a moment later
            if delivered.fate == "kept":
                message.requeue()
        self.done.append(delivered)
        return delivered

    def deliver_again(self, delivered: Delivered) -> Delivered:
        """Deliver a message once more, as a broker may that did not see it acknowledged."""
        headers = {name: value for name, value in delivered.headers.items() if name.startswith("saga_")}
        follows = {"link": delivered.embed["callbacks"], "chain": delivered.embed["chain"]}
        self.app.send_task(delivered.task, delivered.args, delivered.kwargs, task_id=delivered.id, headers=headers, **follows)
        return self.one()

    def _execute(self, message: Any, delivered: Delivered) -> None:
        self.app.set_current()
        confirm_answers(self.app.tasks[delivered.task])

        def ack(*_: object) -> None:
            message.ack()
            delivered.fate = "acked"

        def reject(_logger: object, _errors: object, requeue: bool = False) -> None:
            message.reject(requeue=False)  # a requeued message would come again at once
            delivered.fate = "requeued" if requeue else "rejected"

        request = keeping_failures(Request)(
            message, app=self.app, on_ack=ack, on_reject=reject, hostname="test", eventer=_NoEvents()
        )
        failed = request.on_failure

        def on_failure(failure: Any, **options: Any) -> Any:
            delivered.error = getattr(failure.exception, "exc", failure.exception)
            delivered.frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(failure.tb)]
            delivered.size = len(pickle.dumps(failure))
            return failed(failure, **options)

        request.on_failure = on_failure
        consumer = _Consumer(self.app)
        task = self.app.tasks[delivered.task]
        if self.is_batching and hasattr(task, "saga_step"):
            consumer = consumer_for(task, consumer)
        consumer.on_task_request(request)


class _Consumer:
    """A worker's consumer, as far as a batch consumer looks at it: everything happens at once."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.pool = TaskPool(app=app)
        self.pool.start()
        self.qos = SimpleNamespace(value=1)
        self.restart_count = 0
        self.connection_errors = ()
        self.event_dispatcher = SimpleNamespace(enabled=True, groups=set())  # so that every message goes through the broker
        self.task_buckets: dict[str, Any] = {}

    def on_task_request(self, request: Any) -> None:
        """Run a message as a task."""
        with suppress(TaskRevokedError):  # an expired one, too
            request.execute_using_pool(self.pool)

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        """Call a function."""
        call(*args)


class AgainWorker(Worker):
    """A worker to whom everything comes for the second time at least."""

    def _execute(self, message: Any, delivered: Delivered) -> None:
        message.delivery_info["redelivered"] = True
        super()._execute(message, delivered)


class _NoEvents:
    enabled = False

    def send(self, *_: object, **__: object) -> None:
        """Send nothing."""


def _take_all(queue: Any) -> list[Any]:
    messages = []
    while True:
        try:
            messages.append(queue.get_nowait())
        except Empty:
            break
    for message in messages:
        message.requeue()
    return messages


def _delivered(message: Any) -> Delivered:
    args, kwargs, embed = message.payload
    return Delivered(message.headers["task"], message.headers["id"], dict(message.headers), args, kwargs, embed)


class WithoutAggregators(MemoryBackend):
    """A backend in memory that keeps no items of aggregators."""

    def __init__(self, url: str, *, prefix: str, options: Mapping[str, object] | None = None, clock: Any = None) -> None:
        super().__init__(url, prefix=prefix, options=options, clock=clock)
        del self.aggregates, self.buffers


class Interposed(SagaStore):
    """A real store, before or after whose operations something else happens: a rival's write, or a failure."""

    def __init__(self, inner: SagaStore) -> None:
        self.inner = inner
        self.calls: list[str] = []
        self.before: dict[str, list[Callable[[], None]]] = {}
        self.after: dict[str, list[Callable[[], None]]] = {}

    def once_before(self, operation: str, *actions: Callable[[], None]) -> None:
        """Have an action happen before the next call, another before the one after it, and so on."""
        self.before.setdefault(operation, []).extend(actions)

    def once_after(self, operation: str, *actions: Callable[[], None]) -> None:
        """Have an action happen after the next call, another after the one after it, and so on."""
        self.after.setdefault(operation, []).extend(actions)

    def find(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("find", *args, **kwargs)

    def insert(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("insert", *args, **kwargs)

    def update(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("update", *args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("delete", *args, **kwargs)

    def record(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("record", *args, **kwargs)

    def lock(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("lock", *args, **kwargs)

    def count(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("count", *args, **kwargs)

    def rename(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("rename", *args, **kwargs)

    def _call(self, operation: str, *args: Any, **kwargs: Any) -> Any:
        if waiting := self.before.get(operation):
            waiting.pop(0)()
        self.calls.append(operation)
        result = getattr(self.inner, operation)(*args, **kwargs)
        if waiting := self.after.get(operation):
            waiting.pop(0)()
        return result


def interposed(app: Celery) -> Interposed:
    """Interpose on the store that an app has open; operations that come together pass it one by one."""
    backend: Any = backend_of(app)
    backend.sagas = store = Interposed(backend.sagas)
    backend.many = partial(Backend.many, backend)
    return store
