"""What an app needs to handle messages, made once in each process and dropped after a fork."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from celery import Celery

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.core.registry import registry
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.handling import Services
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.errors import ConfigurationError, UnsafeBackend
from celery_sagas.settings import DEFAULT_FILE, Settings, is_default_backend, read_settings
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.urls import open_backend
from celery_sagas.worker.celery_internals import is_stand_in, other_apps
from celery_sagas.worker.publishing import open_publisher
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher, EagerPublisher
from celery_sagas.worker.serialization import serializer
from celery_sagas.worker.targets import answering

logger = logging.getLogger("celery_sagas")


class Runtime:
    """One app's backend, publisher and services in one process."""

    def __init__(self, app: Celery) -> None:
        refuse_stand_in(app)
        self.app = app
        self.settings = read_settings(app.conf)
        self._rules: dict[str, tuple[AggregatorDefinition, Rules]] = {}
        self.backend = open_app_backend(app, self.settings)
        self.batches = _open_batches(self.settings, self.backend)
        self.publisher = open_publisher(app)
        grace_s, most_bytes = self.settings.dispatch_grace, self.settings.max_state_bytes
        dispatcher = Dispatcher(self.backend.outbox, self.publisher, grace_s)
        serialize, answer = serializer(app, most_bytes), answering(app, most_bytes)
        terms = WorkTerms(serialize, answer, most_bytes, dispatcher.owner, int(grace_s * 1000))
        self.services = Services(self.backend, dispatcher, terms, self.settings.conflict_retries)
        if app.conf.task_always_eager:
            self.prepare(processes=1)  # there is no worker that could

    @property
    def backends(self) -> list[Backend]:
        """The backend of sagas, and that of aggregators if it is another."""
        return list(dict.fromkeys((self.backend, self.batches)))

    def remove_dead_letter(self, id: str) -> None:
        """Remove a dead letter from the backend that has it."""
        any(backend.dead.remove(id) for backend in self.backends)

    def retention_s(self, backend: Backend) -> float:
        """Return how long a backend remembers what was handled. Seconds."""
        return self.settings.journal_retention or backend.journal_retention_s

    def rules_named(self, name: str) -> Rules:
        """Return what an aggregator asks of its store, also if this app does not define it.

        Then nobody knows here when its groups are to be flushed. They become due at once, so that a relay which knows it looks at
        them by its rules; ids are remembered for as long as they are without ``dedupe_for``.
        """
        definition = registry.aggregators.get(name)
        if definition is not None:
            return self.rules_of(definition)
        remember_ms, lease_ms = int(self.retention_s(self.batches) * 1000), int(self.settings.lease_ttl * 1000)
        return Rules(name, within_ms=1, remember_ms=remember_ms, lease_ms=lease_ms)

    def rules_of(self, definition: AggregatorDefinition) -> Rules:
        """Return what an aggregator asks of its store."""
        rules = self._rules.get(definition.name)
        if rules is None or rules[0] is not definition:
            settings = self.settings
            made = definition.rules(
                retention_ms=int(self.retention_s(self.batches) * 1000),
                max_attempts=settings.max_deliveries,
                lease_ms=int(settings.lease_ttl * 1000),
            )
            rules = self._rules[definition.name] = (definition, made)
        return rules[1]

    def prepare(self, *, processes: int) -> None:
        """Make the backend ready: create missing tables, refuse what is unsafe.

        Args:
            processes: How many processes handle this app's messages on it.

        Raises:
            ConfigurationError: The backend cannot be used, or cannot keep the promise.
            StoreUnavailable: It cannot be reached.
        """
        for backend in self.backends:
            prepare_backend(backend, self.settings, processes)

    def close(self) -> None:
        """Close every connection."""
        self.services.dispatcher.close()
        self.publisher.close()
        for backend in self.backends:
            backend.close()


def open_app_backend(app: Celery, settings: Settings) -> Backend:
    """Open the backend that an app's settings name."""
    warn_of_default_backend(app)
    return open_backend(settings.backend, prefix=settings.prefix, options=settings.backend_options)


def _open_batches(settings: Settings, backend: Backend) -> Backend:
    """Return the backend that keeps what aggregators buffer: most often that of sagas."""
    url = settings.aggregator_backend
    if url is None or url == settings.backend:
        return backend
    return open_backend(url, prefix=settings.prefix, options={})


def prepare_backend(backend: Backend, settings: Settings, processes: int) -> None:
    """Make a backend ready as the settings want it; see ``Runtime.prepare``."""
    try:
        for warning in backend.prepare(create_schema=settings.create_schema, processes=processes):
            logger.warning("%s: %s", backend.url, warning)
    except UnsafeBackend as exc:
        if settings.unsafe_backend == "refuse":
            raise
        logger.warning("%s: %s", backend.url, exc)


def refuse_stand_in(app: Celery) -> None:
    """Refuse the app that Celery makes where there is none, unless it is configured: it knows neither broker nor backend.

    Raises:
        ConfigurationError: It is that app.
    """
    if not is_stand_in(app) or app.conf.broker_url or app.conf.task_always_eager or not is_default_backend(app.conf):
        return
    if others := other_apps(app):
        names = ", ".join(sorted(repr(each.main) for each in others if each.main)) or "of this process"
        problem = f"the Celery app {names} is not the current one in this thread"
        raise ConfigurationError(problem, "Call its set_default() where it is made: then it is the app of every thread")
    remedy = "Import the module that makes it first; under Django, the project's __init__.py does"
    raise ConfigurationError("no Celery app was made in this process", remedy)


def warn_of_default_backend(app: Celery) -> None:
    """Name the file in which an app keeps its sagas if it names no backend: once, also if the process forks afterwards."""
    if not _told and is_default_backend(app.conf):
        _told.append(True)
        logger.warning("saga_backend is not set: sagas are kept in %s", default_file())


def default_file() -> Path:
    """Return the file in which an app keeps its sagas, or its dead letters, if it names no backend."""
    return Path(DEFAULT_FILE).resolve()


def has_backend(app: Celery) -> bool:
    """Whether an app has sagas, or names a backend: without either it only keeps dead letters, in the default file."""
    return bool(registry) or not is_default_backend(app.conf)


def runtime_of(app: Celery) -> Runtime:
    """Return the app's runtime in this process.

    Raises:
        ConfigurationError: A setting is wrong, or the backend's driver is missing.
    """
    runtime = _runtimes.get(app)
    if runtime is None:
        with _lock:
            return _make(app)
    return runtime


def publisher_of(app: Celery) -> ConfirmedPublisher | EagerPublisher:
    """Return the app's publisher in this process: its runtime's, or one alone where there is no saga, which needs no backend."""
    if registry:
        return runtime_of(app).publisher
    publisher = _publishers.get(app)
    if publisher is None:
        with _lock:
            publisher = _publishers.get(app) or _publishers.setdefault(app, open_publisher(app))
    return publisher


def close_runtime(app: Celery) -> None:
    """Close the app's runtime, and its publisher, if this process made one."""
    with _lock:
        kept = _runtimes.pop(app, None), _publishers.pop(app, None)
    for made in kept:
        if made is not None:
            made.close()


@contextmanager
def main_process_backend(app: Celery) -> Iterator[Backend]:
    """Open the backend in the main process of a worker: that of its tasks, if they run there; else one that is closed again.

    Connections that are open when the pool forks would be inherited.
    """
    with main_process_backends(app) as (backend, *_):
        yield backend


@contextmanager
def main_process_backends(app: Celery) -> Iterator[list[Backend]]:
    """Open likewise that of aggregators, too, if it is another."""
    if (runtime := _runtimes.get(app)) is not None:
        yield runtime.backends
        return
    settings = read_settings(app.conf)
    with closing(open_app_backend(app, settings)) as backend, closing(_open_batches(settings, backend)) as batches:
        yield list(dict.fromkeys((backend, batches)))


def _make(app: Celery) -> Runtime:
    runtime = _runtimes.get(app)
    if runtime is None:
        runtime = _runtimes[app] = Runtime(app)
    return runtime


_lock = threading.Lock()
_runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()
#: Of apps without sagas.
_publishers: WeakKeyDictionary[Celery, ConfirmedPublisher | EagerPublisher] = WeakKeyDictionary()
#: What a parent process made: neither used nor closed here, nor collected, since closing a shared socket ends the parent's.
_inherited: list[Runtime | ConfirmedPublisher | EagerPublisher] = []
_told: list[bool] = []


def _begin_anew() -> None:
    """Set aside what the parent made, and replace the lock, which another of its threads may have held at the fork."""
    global _lock, _runtimes, _publishers
    _inherited.extend([*_runtimes.values(), *_publishers.values()])
    _lock, _runtimes, _publishers = threading.Lock(), WeakKeyDictionary(), WeakKeyDictionary()


os.register_at_fork(after_in_child=_begin_anew)
