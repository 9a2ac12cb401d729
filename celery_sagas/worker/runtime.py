"""What an app needs to handle messages, made once in each process and dropped after a fork."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

from celery import Celery

from celery_sagas.core.aggregators import AggregatorDefinition
from celery_sagas.core.gate import Rules
from celery_sagas.engine.commit import Limits
from celery_sagas.engine.dispatch import Dispatcher
from celery_sagas.engine.run import Services
from celery_sagas.errors import UnsafeBackend
from celery_sagas.settings import Settings, is_default_backend, read_settings
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.urls import open_backend
from celery_sagas.worker.conversation import answering
from celery_sagas.worker.freeze import freezer
from celery_sagas.worker.postbox import postbox_of
from celery_sagas.worker.publisher import ConfirmedPublisher, EagerPublisher

logger = logging.getLogger("celery_sagas")


class Runtime:
    """One app's backend, publisher and services in one process."""

    def __init__(self, app: Celery) -> None:
        self.settings = read_settings(app.conf)
        self._rules: dict[str, tuple[AggregatorDefinition, Rules]] = {}
        self.backend = open_app_backend(app, self.settings)
        self.batches = self._open_batches()
        self.publisher = EagerPublisher(app) if app.conf.task_always_eager else ConfirmedPublisher(app)
        self.services = Services(
            backend=self.backend,
            dispatcher=Dispatcher(
                self.backend.outbox, self.publisher, self.settings.dispatch_grace, postbox_of(app, self.publisher)
            ),
            freeze=freezer(app, self.settings.max_state_bytes),
            answer=answering(app, self.settings.max_state_bytes),
            limits=Limits(self.settings.max_state_bytes, int(self.settings.dispatch_grace * 1000)),
            conflict_retries=self.settings.conflict_retries,
        )
        if app.conf.task_always_eager:
            self.prepare(processes=1)  # there is no worker that could

    def _open_batches(self) -> Backend:
        """Return the backend that keeps what aggregators buffer: most often the same one."""
        url = self.settings.aggregator_backend
        if url is None or url == self.settings.backend:
            return self.backend
        return open_backend(url, prefix=self.settings.prefix, options={})

    def retention_s(self, backend: Backend) -> float:
        """Return how long a backend remembers what was handled. Seconds."""
        return self.settings.journal_retention or backend.journal_retention_s

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
        for backend in dict.fromkeys((self.backend, self.batches)):
            self._prepare(backend, processes)

    def _prepare(self, backend: Backend, processes: int) -> None:
        try:
            for warning in backend.prepare(create_schema=self.settings.create_schema, processes=processes):
                logger.warning("%s: %s", backend.url, warning)
        except UnsafeBackend as exc:
            if self.settings.unsafe_backend == "refuse":
                raise
            logger.warning("%s: %s", backend.url, exc)

    def close(self) -> None:
        """Close every connection."""
        self.services.dispatcher.close()
        self.publisher.close()
        for backend in dict.fromkeys((self.backend, self.batches)):
            backend.close()


def open_app_backend(app: Celery, settings: Settings) -> Backend:
    """Open the backend that an app's settings name."""
    tell_default_backend(app)
    return open_backend(settings.backend, prefix=settings.prefix, options=settings.backend_options)


def tell_default_backend(app: Celery) -> None:
    """Name the file in which an app keeps its sagas if it names no backend: once, also if the process forks afterwards."""
    if not _told and is_default_backend(app.conf):
        _told.append(True)
        logger.warning("saga_backend is not set: sagas are kept in %s", Path("celery-sagas.sqlite3").resolve())


def runtime_of(app: Celery) -> Runtime:
    """Return the app's runtime in this process.

    Raises:
        ConfigurationError: A setting is wrong, or the backend's driver is missing.
    """
    process, runtime = _runtimes.get(app, (0, None))
    if runtime is None or process != os.getpid():
        with _lock:
            return _make(app)
    return runtime


def close_runtime(app: Celery) -> None:
    """Close the app's runtime, if this process made one."""
    with _lock:
        process, runtime = _runtimes.pop(app, (0, None))
    if runtime is None:
        return
    if process == os.getpid():
        runtime.close()
    else:
        _inherited.append(runtime)


@contextmanager
def borrowed_backend(app: Celery) -> Iterator[Backend]:
    """Lend the backend to the main process of a worker: that of its tasks, if they run there; else one that is closed again.

    Connections that are open when the pool forks would be inherited.
    """
    process, runtime = _runtimes.get(app, (0, None))
    if runtime is not None and process == os.getpid():
        yield runtime.backend
        return
    with closing(open_app_backend(app, read_settings(app.conf))) as backend:
        yield backend


def _make(app: Celery) -> Runtime:
    process, runtime = _runtimes.get(app, (0, None))
    if runtime is not None and process == os.getpid():
        return runtime
    if runtime is not None:
        _inherited.append(runtime)
    made = Runtime(app)
    _runtimes[app] = (os.getpid(), made)
    return made


_lock = threading.Lock()
_runtimes: WeakKeyDictionary[Celery, tuple[int, Runtime]] = WeakKeyDictionary()
#: Runtimes of a parent process: neither used nor closed here, nor collected, since closing a shared socket ends the parent's.
_inherited: list[Runtime] = []
_told: list[bool] = []
os.register_at_fork(after_in_child=lambda: _renew_lock())


def _renew_lock() -> None:
    """Replace the lock, which another thread of the parent may have held at the fork."""
    global _lock
    _lock = threading.Lock()
