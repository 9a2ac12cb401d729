"""The relay in threads of its own: in every worker, and alone in ``celery sagas relay``."""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery

from celery_sagas import signals
from celery_sagas.core.registry import registry
from celery_sagas.engine.aggregators.groups import Groups
from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.engine.requests.gathers import Gathers
from celery_sagas.engine.sweeps import Tally
from celery_sagas.errors import PublishError
from celery_sagas.forks import WORK
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.aggregators.flushes import publish_flush
from celery_sagas.worker.failures.dead_letters import request_of
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.runtime import Runtime, runtime_of
from celery_sagas.worker.series import next_occurrence

logger = logging.getLogger("celery_sagas")

#: Seconds that an ending worker waits for its relay; if they do not suffice, its current messages are published again later.
STOP_S = 5.0
#: The maximum number of seconds between two sweeps while they end in errors.
_LONGEST_PAUSE_S = 10.0


class RelayThreads:
    """Sweeps the outbox of each backend until it is stopped, despite all errors: a store or a broker that goes away returns.

    Each has a thread: one that is away, or does not answer, holds up no other. In a child of its process it does not run, and the
    child uses none of its resources.
    """

    def __init__(self, app: Celery) -> None:
        runtime = runtime_of(app)
        self._app = app
        self._interval_s = runtime.settings.relay_interval
        #: Of every backend in the settings, in one order in each runtime.
        self._outboxes = [_Outbox(backend.url) for backend in runtime.backends.opened]
        self.tally = self._outboxes[0].tally  #: of the default backend
        self._stopping = threading.Event()
        numbers = range(len(self._outboxes))
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name="celery-sagas-relay", daemon=True) for number in numbers
        ]

    def start(self) -> None:
        """Start the threads; a first sweep comes within the interval, so that workers started together do not sweep together."""
        _started[self._app] = self
        for thread in self._threads:
            thread.start()

    @property
    def is_running(self) -> bool:
        """Return whether none of its threads has ended."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self, timeout_s: float = STOP_S) -> bool:
        """End it after its current work; return whether it ended in time."""
        self._stopping.set()
        _started.pop(self._app, None)
        end = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def tallies(self) -> list[tuple[str, Tally]]:
        """The totals of each backend that is swept, after its URL as it may be shown, which two may have in common."""
        return [(outbox.url, outbox.tally) for outbox in self._outboxes if outbox.relay or outbox.tally is self.tally]

    def shown(self) -> dict[str, Any]:
        """Return its totals as JSON values, for operators: of the default backend, then of each other one."""
        others = [{"url": url, **tally.shown()} for url, tally in self.tallies if tally is not self.tally]
        return {"running": self.is_running, **self.tally.shown(), "other_backends": others}

    def _run(self, number: int) -> None:
        pause_s = random.uniform(0, self._interval_s)
        try:
            while not self._stopping.wait(pause_s):
                pause_s = self._sweep(number)
        finally:
            if not self._stopping.is_set():
                logger.critical("the relay has ended by itself, and sends nothing that is due: start this process again")

    def _sweep(self, number: int) -> float:
        """Sweep a backend; return the seconds until its next sweep."""
        outbox = self._outboxes[number]
        try:
            relay = self._relay_of(number)
            is_well = relay is None or not relay.sweep().error
        except Exception:
            if self._stopping.is_set():  # the worker has not waited for it, and closes the resources that it uses
                return 0
            logger.exception("the relay met with an error, and goes on")
            is_well = False
        outbox.failures = 0 if is_well else outbox.failures + 1
        return self._pause_s(outbox.failures)

    def _relay_of(self, number: int) -> Relay | None:
        """Return the relay of this process's runtime for a backend, once a definition uses that."""
        runtime, outbox = runtime_of(self._app), self._outboxes[number]
        backend = runtime.backends.opened[number]
        if outbox.relay is None or outbox.relay.backend is not backend:
            outbox.relay = self._open(runtime, backend, outbox.tally) if backend in runtime.backends else None
        return outbox.relay

    def _open(self, runtime: Runtime, backend: Backend, tally: Tally) -> Relay:
        return open_relay(runtime, backend, is_stopping=self._stopping.is_set, tally=tally)

    def _pause_s(self, failures: int) -> float:
        longest_s = max(self._interval_s, _LONGEST_PAUSE_S)
        pause_s: float = min(self._interval_s * 2 ** min(failures, 30), longest_s)
        return pause_s * random.uniform(0.8, 1.0)


@dataclass
class _Outbox:
    """The outbox of a backend, as its thread sweeps it."""

    url: str  #: of the backend, as it may be shown
    tally: Tally = field(default_factory=Tally)
    relay: Relay | None = None  #: while no definition uses the backend, there is none
    failures: int = 0  #: failed sweeps since the last successful one


def open_relay(
    runtime: Runtime, backend: Backend | None = None, *, clock: Callable[[], float] = time.monotonic, **options: Any
) -> Relay:
    """Return the relay of a runtime for the outbox of a backend.

    Args:
        runtime: The resources of its app.
        backend: One of the runtime's; the default one if left out. That of ``runtime.batches`` sees to the aggregators, too.
        clock: Returns seconds, of any beginning.
        **options: Of the relay.
    """
    app, backend = runtime.app, backend or runtime.backend
    return Relay(
        backend,
        runtime.publisher,
        app.tasks.__contains__,
        terms_of(runtime, backend),
        lambda: WORK,
        clock=clock,
        next_occurrence=next_occurrence,
        groups=groups_of(runtime, clock) if backend is runtime.batches else None,
        gathers=gathers_of(runtime, backend, clock),
        notify_requester=partial(_notify_requester, app),
        announce=partial(_announce, app),
        **options,
    )


def _notify_requester(app: Celery, dead_letter: DeadLetter, error: PublishError) -> None:
    """Notify the instance that waits for the answer to a message that could not be published."""
    if (request := request_of(app, dead_letter)) is not None:
        notify_requester(app, request, error.__cause__ or error, dead_letter=dead_letter.id, is_retried=True)


def _announce(app: Celery, dead_letter: DeadLetter, error: PublishError) -> None:
    sender = app.tasks.get(dead_letter.task, dead_letter.task)
    signals.step_failed.send(sender=sender, dead_letter=dead_letter, exception=error.__cause__ or error)


def groups_of(runtime: Runtime, clock: Callable[[], float] = time.monotonic) -> Groups | None:
    """Return the groups of the app's aggregators, also of those that are defined later, if their backend can have any."""
    if not runtime.batches.has_aggregators:
        return None
    return Groups(
        runtime.batches,
        registry.aggregators.values,
        runtime.rules_of,
        partial(publish_flush, runtime),
        runtime.settings.lease_ttl,
        clock,
    )


def gathers_of(runtime: Runtime, backend: Backend, clock: Callable[[], float] = time.monotonic) -> Gathers | None:
    """Return the gathers of the sagas in a backend, if their answers are collected somewhere."""
    gathering = runtime.gathering_in(backend)
    if not gathering.answers.has_aggregators:
        return None
    return Gathers(gathering, partial(runtime.backends.sagas_in, backend), clock)


def terms_of(runtime: Runtime, backend: Backend) -> Terms:
    """Return the settings of an app's relay for a backend."""
    settings, retention_s = runtime.settings, runtime.retention_s(backend)
    kept = (runtime.resend_after_s, settings.audit_retention)
    return Terms(settings.relay_interval, settings.lease_ttl, settings.max_deliveries, retention_s, *kept)


def relay_of(app: Celery) -> RelayThreads | None:
    """Return the relay that runs in this process for an app."""
    return _started.get(app)


_started: WeakKeyDictionary[Celery, RelayThreads] = WeakKeyDictionary()
