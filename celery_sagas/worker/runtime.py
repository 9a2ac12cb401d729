"""The resources of an app for handling messages, made once in each process and dropped after a fork."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from celery import Celery

from celery_sagas.connections import BRIEF
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import Request
from celery_sagas.core.requests.views import MemberOutcomes
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.handling import Services
from celery_sagas.engine.outbox.dispatch import Dispatcher
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.requests.gathering import Gathering
from celery_sagas.engine.switchboard import Switchboard
from celery_sagas.errors import ConfigurationError
from celery_sagas.forks import WORK
from celery_sagas.settings import is_default_backend, read_settings
from celery_sagas.stores.ports import Backend
from celery_sagas.worker.asking.undo import UndoOutcomes
from celery_sagas.worker.backends import Backends, open_backends, prepare_backend, retention_s
from celery_sagas.worker.celery_internals import is_stand_in, longest_redelivery_s, other_apps
from celery_sagas.worker.checks import check_definitions
from celery_sagas.worker.deferred import DeferredSignatures
from celery_sagas.worker.publishing import open_publisher
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher, EagerPublisher
from celery_sagas.worker.serialization import serialized
from celery_sagas.worker.targets import publish_gathered, serialized_answer

logger = logging.getLogger("celery_sagas")

T = TypeVar("T")
#: How long a timeout may be in a queue before it is taken for lost, where the settings do not say it. Seconds.
_RESEND_AFTER_S = 3_600.0
#: Seconds that a broadcast to all workers may take.
_REVOKE_S = 5.0


class Runtime:
    """One app's backends, publishers and services in one process."""

    def __init__(
        self, app: Celery, backend: Backend | None = None, publisher: ConfirmedPublisher | EagerPublisher | None = None
    ) -> None:
        refuse_stand_in(app)
        self.app = app
        self.settings = read_settings(app.conf)
        self.observe: Callable[[Outcome], object] | None = None  #: called with the outcome of each message that was handled
        self.revoke: Callable[[Sequence[str]], object] = partial(_revoke, app)
        #: Lets seconds pass while plain code waits, in a test in virtual time; else whoever waits sleeps.
        self.pause: Callable[[float], object] | None = None
        self._rules: dict[str, tuple[AggregatorDefinition, Rules]] = {}
        self.backends = Backends(backend, backend, backend, None) if backend else open_backends(app, self.settings)
        self.publisher = publisher or open_publisher(app)
        #: After how many seconds a timeout is published again that was not handled.
        self.resend_after_s = self.settings.resend_after or max(_RESEND_AFTER_S, 2 * (longest_redelivery_s(app) or 0.0))
        self._opened = {each: self._open(each) for each in self.backends.opened}
        if app.conf.task_always_eager:
            self.prepare(processes=1)  # there is no worker that could

    def _open(self, backend: Backend) -> "_Opened":
        """Return what handles the messages of the sagas in a backend, and publishes the rows of its outbox."""
        app, settings, is_default = self.app, self.settings, backend is self.backend
        # each outbox has a publisher of its own: what it leaves to be confirmed later can be collected once
        publisher = self.publisher if is_default else open_publisher(app)
        most_bytes, grace_ms = settings.max_state_bytes, int(settings.dispatch_grace * 1000)
        dispatcher = Dispatcher(backend.outbox, publisher, settings.dispatch_grace, self.resend_after_s)
        serialize = partial(serialized, app, max_bytes=most_bytes)
        answer = partial(serialized_answer, app, max_bytes=most_bytes)
        about = (dispatcher.owner, grace_ms, self.read_outcomes)
        terms = WorkTerms(serialize, answer, UndoOutcomes(answer), DeferredSignatures(app), most_bytes, *about)
        services = Services(backend, dispatcher, terms, settings.conflict_retries, self._cancel)
        lease_ms, retention_ms = int(settings.lease_ttl * 1000), int(self.retention_s(backend) * 1000)
        answers = backend if backend.has_aggregators else self.batches
        end = partial(publish_gathered, app, self.publisher)
        gathering = Gathering(backend, answers, end, lease_ms, retention_ms, most_bytes)
        return _Opened(services, gathering, Switchboard(backend))

    @property
    def backend(self) -> Backend:
        """The backend of sagas that name none."""
        return self.backends.default

    @property
    def batches(self) -> Backend:
        """The backend of the items of aggregators."""
        return self.backends.batches

    @property
    def outbox(self) -> Backend:
        """The backend in whose transactions plain code sends."""
        return self.backends.outbox

    @property
    def services(self) -> Services:
        """What handles the messages of sagas that name no backend."""
        return self._opened[self.backend].services

    def services_of(self, saga: SagaDefinition) -> Services:
        """Return what handles the messages of a saga.

        Raises:
            ConfigurationError: The settings do not have the backend that it names.
        """
        return self._opened[self.backends.of(saga)].services

    def switchboard_of(self, saga: SagaDefinition) -> Switchboard:
        """Return what knows which steps of a saga are held.

        Raises:
            ConfigurationError: The settings do not have the backend that it names.
        """
        return self._opened[self.backends.of(saga)].switchboard

    def gathering_of(self, saga: SagaDefinition) -> Gathering:
        """Return what collects the answers to the gathers of a saga.

        Raises:
            ConfigurationError: The settings do not have the backend that it names.
        """
        return self.gathering_in(self.backends.of(saga))

    def gathering_in(self, backend: Backend) -> Gathering:
        """Return what collects the answers to the gathers of the sagas in a backend."""
        return self._opened[backend].gathering

    def read_outcomes(self, saga: SagaDefinition, instance_id: str, request: Request) -> MemberOutcomes:
        """Return what has come of the members of an instance's gather so far; see ``Gathering.outcomes``."""
        return self.gathering_of(saga).outcomes(saga, instance_id, request)

    def _cancel(self, outcome: Outcome, requests: Sequence[Request], unbegun: Sequence[str]) -> None:
        """Have workers not begin these tasks, nor those of cancelled requests, and remove what was gathered for the latter."""
        for request in requests:
            if request.members and (saga := registry.saga_named(outcome.saga)):
                self.gathering_of(saga).forget(saga, outcome.instance_id, request.id)
        self.revoke([*unbegun, *(id for request in requests for id in request.task_ids)])

    def dispatcher_of(self, backend: Backend) -> Dispatcher:
        """Return what publishes the rows that are committed to a backend's outbox."""
        return self._opened[backend].services.dispatcher

    def remove_dead_letter(self, id: str) -> None:
        """Remove a dead letter from its backend."""
        any(backend.dead.remove(id) for backend in self.backends)

    def retention_s(self, backend: Backend) -> float:
        """Return how long a backend remembers handled messages. Seconds."""
        return retention_s(self.settings, backend)

    def rules_named(self, name: str) -> Rules:
        """Return the rules of an aggregator for its store, even if this app does not define it.

        In that case it is unknown here when its groups must be flushed. They become due at once, so that a relay that defines it
        checks them against its rules; ids are remembered as long as without ``dedupe_for``.
        """
        definition = registry.aggregators.get(name)
        if definition is not None:
            return self.rules_of(definition)
        remember_ms, lease_ms = int(self.retention_s(self.batches) * 1000), int(self.settings.lease_ttl * 1000)
        return Rules(name, within_ms=1, remember_ms=remember_ms, lease_ms=lease_ms)

    def rules_of(self, definition: AggregatorDefinition) -> Rules:
        """Return the rules of an aggregator for its store."""
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
        """Prepare the backends: create missing tables; refuse one that is unsafe, or that cannot do what the definitions need.

        Args:
            processes: The number of processes that handle this app's messages on them.

        Raises:
            ConfigurationError: One cannot be used, or cannot keep the promise; or a saga names one that the settings do not have.
            StoreUnavailable: One cannot be reached.
        """
        check_definitions(self.settings, self.backends)
        for backend in self.backends:
            prepare_backend(backend, self.settings, processes)

    def close(self) -> None:
        """Close every connection."""
        dispatchers = [each.services.dispatcher for each in self._opened.values()]
        for dispatcher in dispatchers:
            dispatcher.close()
        for dispatcher in dispatchers:
            dispatcher.publisher.close()
        self.backends.close()


class _Opened(NamedTuple):
    """What works on a backend in this process."""

    services: Services
    gathering: Gathering
    switchboard: Switchboard


def _revoke(app: Celery, ids: Sequence[str]) -> None:
    """Ask all workers not to begin these tasks. Those that are stopped, or start later, never hear of it."""
    if app.conf.task_always_eager:
        return
    try:
        within(_REVOKE_S, partial(app.control.revoke, list(ids)))
    except Exception as exc:  # the broker may be away, or the transport have no broadcasts
        logger.warning("%d tasks are not revoked, and their outcomes are awaited: %r", len(ids), exc)


def refuse_stand_in(app: Celery) -> None:
    """Refuse the app that Celery makes if none exists, unless it is configured: it has neither broker nor backend.

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


def runtime_of(app: Celery) -> Runtime:
    """Return the app's runtime in this process.

    Raises:
        ConfigurationError: A setting is wrong, or the backend's driver is missing.
    """
    runtime = _runtimes.get(app)
    if runtime is None:
        with _lock:
            runtime = _runtimes.get(app) or _runtimes.setdefault(app, (_open or Runtime)(app))
    return runtime


def publisher_of(app: Celery) -> ConfirmedPublisher | EagerPublisher:
    """Return the app's publisher in this process: its runtime's, or for an app without sagas one that needs no backend."""
    if registry:
        return runtime_of(app).publisher
    publisher = _publishers.get(app)
    if publisher is None:
        with _lock:
            publisher = _publishers.get(app) or _publishers.setdefault(app, open_publisher(app))
    return publisher


@contextmanager
def runtimes_opened_by(open_runtime: Callable[[Celery], Runtime]) -> Iterator[WeakKeyDictionary[Celery, Runtime]]:
    """Have the runtimes of this process's apps opened by a function meanwhile, as a test does; yield those that are open."""
    global _open, _runtimes
    with _lock:
        before = _open, _runtimes
        _open, _runtimes = open_runtime, WeakKeyDictionary()
        opened = _runtimes
    try:
        yield opened
    finally:
        with _lock:
            _open, _runtimes = before


def close_runtime(app: Celery) -> None:
    """Close the app's runtime, and its publisher, if this process made one."""
    with _lock:
        kept = _runtimes.pop(app, None), _publishers.pop(app, None)
    for made in kept:
        if made is not None:
            made.close()


def within(seconds: float, work: Callable[[], T]) -> T:
    """Do work of a worker's main process in a thread of its own, between the process's forks, and wait for it: it must not block.

    Returns:
        The result of the work.

    Raises:
        TimeoutError: It took longer; it continues, and its result is lost.
        Exception: Raised by the work.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            with WORK:
                result = work()
            done.set_result(result)
        except Exception as exc:
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True, name=f"{BRIEF}deadline").start()
    return done.result(seconds)


@contextmanager
def main_process_backends(app: Celery) -> Iterator[Backends]:
    """Open the backends in a worker's main process: those of its tasks if they run there, else others that are closed later.

    Connections that are open when the pool forks would be inherited.
    """
    runtime = runtime_of(app) if _open else _runtimes.get(app)
    if runtime is not None:
        yield runtime.backends
        return
    with closing(open_backends(app, read_settings(app.conf))) as backends:
        yield backends


def import_modules(app: Celery) -> None:
    """Import the modules of an app's backends and of its publisher, without a connection: its forks need not do so again.

    Raises:
        ConfigurationError: A setting is wrong, or a backend's driver is missing.
    """
    with main_process_backends(app):
        open_publisher(app).close()


_lock = threading.Lock()
#: Opens a runtime, in a test.
_open: Callable[[Celery], Runtime] | None = None
_runtimes: WeakKeyDictionary[Celery, Runtime] = WeakKeyDictionary()
#: For apps without sagas.
_publishers: WeakKeyDictionary[Celery, ConfirmedPublisher | EagerPublisher] = WeakKeyDictionary()
#: Made by a parent process: neither used nor closed here, nor collected, since closing a shared socket ends the parent's.
_inherited: list[Runtime | ConfirmedPublisher | EagerPublisher] = []


def _reset_after_fork() -> None:
    """Set aside the parent's runtimes, and replace the lock, which another of its threads may have held at the fork."""
    global _lock, _runtimes, _publishers
    _inherited.extend([*_runtimes.values(), *_publishers.values()])
    _lock, _runtimes, _publishers = threading.Lock(), WeakKeyDictionary(), WeakKeyDictionary()


os.register_at_fork(after_in_child=_reset_after_fork)
