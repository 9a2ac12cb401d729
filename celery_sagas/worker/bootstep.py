"""The worker's bootsteps: the backend is made ready, or refused, before anything is consumed; then the relay runs."""

import logging
from importlib import import_module
from typing import Any

from celery import Celery, bootsteps, signals

from celery_sagas.core.aggregators import AggregatorDefinition
from celery_sagas.core.registry import registry
from celery_sagas.core.steps import StepDefinition
from celery_sagas.stores.records import KEY, Lookup
from celery_sagas.worker.redelivery import check_retention
from celery_sagas.worker.relay import RelayThread, terms_of
from celery_sagas.worker.reporting import reporting
from celery_sagas.worker.runtime import close_runtime, runtime_of, tell_default_backend
from celery_sagas.worker.unknown import KeepUnknownTasks

logger = logging.getLogger("celery_sagas")


class PrepareBackend(bootsteps.StartStopStep):
    """Creates missing tables and refuses an unsafe backend. The worker's consumer starts after all other steps."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Say where sagas are kept by default, before the pool's processes are made: each of them would say it again."""
        if registry:
            tell_default_backend(worker.app)

    def start(self, worker: Any) -> None:
        """Prepare the backend; an error ends the worker. Connections are not kept for the pool's processes to inherit."""
        if not registry:
            return
        processes = _processes(worker)
        try:
            prepare(worker.app, processes)
        finally:
            if processes > 1:
                close_runtime(worker.app)


class RunRelay(bootsteps.StartStopStep):
    """Runs the relay in the worker's main process, from when its pool has started until its pool ends."""

    requires = (PrepareBackend,)
    relay: RelayThread | None = None

    def start(self, worker: Any) -> None:
        """Start it, unless there is nothing for it to do."""
        if not registry or worker.app.conf.task_always_eager:
            return
        if not runtime_of(worker.app).settings.relay:
            logger.warning(
                "saga_relay is off: this worker sends no timeouts, and nothing that others have left in the outbox. "
                "Run `celery sagas relay`, or other workers with saga_relay on"
            )
            return
        self.relay = RelayThread(worker.app)
        self.relay.start()

    def stop(self, worker: Any) -> None:
        """Stop it; the worker waits for a bounded time."""
        if self.relay is not None and not self.relay.stop():
            logger.warning("the relay did not end in time: what it is publishing may be published again")

    def terminate(self, worker: Any) -> None:
        """Stop it."""
        self.stop(worker)


def prepare(app: Celery, processes: int) -> None:
    """Make an app's backend ready for so many processes that handle its messages, and check what it must be able to rely on.

    Raises:
        DefinitionError: A step is declared wrongly.
        ConfigurationError: The backend cannot be used, cannot keep the promise, or forgets too early.
        StoreUnavailable: It cannot be reached.
    """
    definitions: list[StepDefinition | AggregatorDefinition] = [*registry.steps.values(), *registry.aggregators.values()]
    for definition in definitions:
        definition.resolve()  # those that were defined after the app was finalised have not been looked at yet
    runtime = runtime_of(app)
    check_retention(app, terms_of(runtime).retention_s)
    runtime.prepare(processes=processes)
    for saga in registry.sagas.values():  # a store of several parts tells whether it would find this one's instances
        runtime.backend.sagas.find(Lookup(saga.names, KEY, "", saga.is_spread))


def _processes(worker: Any) -> int:
    """Return how many processes run tasks: more than one if the pool has processes of its own, whatever their number."""
    pool = f"{worker.pool_cls.__module__}.{worker.pool_cls.__qualname__}"
    return max(2, worker.concurrency) if "prefork" in pool else 1


def add_bootstep(sender: Any = None, **_: object) -> None:
    """Add the bootsteps to a worker that begins: all task modules are loaded by now, and its blueprint is not built yet.

    Each of its tasks may be asked for an answer: its requests tell of failures.
    """
    import_module("celery_sagas.worker.control")  # needs celery.worker, which whoever only sends does without
    sender.app.steps["worker"].update({PrepareBackend, RunRelay})
    sender.app.steps["consumer"].add(KeepUnknownTasks)
    for task in sender.app.tasks.values():
        task.Request = reporting(task.Request)


def connect() -> None:
    """Connect the receiver; again changes nothing."""
    signals.worker_init.connect(add_bootstep, dispatch_uid="celery_sagas.bootstep")
