"""Messages that stay in this process: of its apps, in a test in virtual time or a replay; of one thread, while a step is tried.

Like ``celery_internals`` it uses parts of Celery beyond its documented interface, which ``tests/assumptions`` pins.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Self
from uuid import uuid4

from celery import Celery
from celery.app import backends
from celery.app.amqp import AMQP
from kombu import Connection

#: Celery looks at the broker's transport, which need not be installed.
_BROKERS = dict.fromkeys(("broker_url", "broker_read_url", "broker_write_url"), "memory://")
_SETTINGS = {**_BROKERS, "broker_transport": None, "task_always_eager": False}


#: Receives a message: its app, its content, its headers, the name of its serializer, and its queue.
Accept = Callable[[Celery, Any, Mapping[str, Any], str | None, str], None]


class LocalProducer:
    """A producer that hands messages to a function; also its own pool, and the context of its use."""

    connection = Connection("memory://")  #: never connected
    connections = SimpleNamespace(connection=connection)
    on_return = None

    def __init__(self, app: Celery, accept: Accept) -> None:
        self._app = app
        self._accept = accept

    def acquire(self, *_: object, **__: object) -> Self:
        """Return itself."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keep it: there is nothing to release."""

    @property
    def channel(self) -> Any:
        """A channel of kombu's in memory, for what is no message to a task, such as an event."""
        return self.connection.default_channel

    def publish(
        self,
        body: Any,
        *,
        headers: Mapping[str, Any] | None = None,
        serializer: str | None = None,
        routing_key: str = "",
        **_: object,
    ) -> None:
        """Publish a message of Celery's."""
        self._accept(self._app, body, headers or {}, serializer, routing_key)


@contextmanager
def publishing_to(accept: Accept, attach: Callable[[Celery], object] = lambda app: None) -> Iterator[None]:
    """Have a function receive meanwhile what any app of this process publishes.

    Args:
        accept: The function.
        attach: Called with an app before it publishes.
    """

    def producers(amqp: Any) -> LocalProducer:
        attach(amqp.app)
        return LocalProducer(amqp.app, accept)

    celerys: Any = AMQP
    usual = celerys.producer_pool
    celerys.producer_pool = property(producers)
    try:
        yield
    finally:
        celerys.producer_pool = usual


@contextmanager
def held_back(accept: Accept) -> Iterator[None]:
    """Have a function receive meanwhile what this thread, or greenlet, publishes with Celery's functions; other threads go on."""
    _watch_pools()
    token = _holding.set(accept)
    try:
        yield
    finally:
        _holding.reset(token)


#: What receives the messages of this thread, while they are held back.
_holding: ContextVar[Accept | None] = ContextVar("holding", default=None)


class _WatchedPool(property):
    """The pool of an app's producers; for a thread that holds its messages back, what receives them."""


def _watch_pools() -> None:
    """Have apps look, for each message, whether its thread holds it back; a repeated call changes nothing."""
    celerys: Any = AMQP
    usual = celerys.producer_pool
    if isinstance(usual, _WatchedPool):
        return

    def producers(amqp: Any) -> Any:
        accept = _holding.get()
        return usual.fget(amqp) if accept is None else LocalProducer(amqp.app, accept)

    celerys.producer_pool = _WatchedPool(producers)


def drop(*_: object) -> None:
    """Receive a message, and forget it."""


@contextmanager
def local(app: Any) -> Iterator[None]:
    """Have an app need neither a broker nor a result backend meanwhile, and run no task where it is published."""
    settings = {name: app.conf.get(name) for name in _SETTINGS}
    results = app._backend_cache, getattr(app._local, "backend", None)
    app.conf.update(_SETTINGS)
    found: Any = backends.by_url("cache+memory://", app.loader)
    app._backend_cache = backend = found[0](app=app, url=found[1])
    backend.task_keyprefix = uuid4().bytes + backend.task_keyprefix  # the cache is one for the process
    _forget_tracers(app)
    try:
        yield
    finally:
        app.conf.update(settings)
        app._backend_cache, app._local.backend = results
        _forget_tracers(app)


def _forget_tracers(app: Any) -> None:
    """Have the tracers of tasks, which know the result backend, made anew."""
    for task in app.tasks.values():
        task.__trace__ = None
