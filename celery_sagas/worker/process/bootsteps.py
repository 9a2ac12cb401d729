"""The worker's bootsteps: the backend is made ready, or refused, before anything is consumed; then the relay runs."""

import logging
from contextlib import suppress
from importlib import import_module
from typing import Any

from celery import Celery, bootsteps, signals

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.registry import registry
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.instance import lookup_in
from celery_sagas.errors import ConfigurationError, StoreError
from celery_sagas.stores.records import KEY
from celery_sagas.worker.backends import warn_of_default_backend
from celery_sagas.worker.celery_internals import longest_redelivery_s, name_of
from celery_sagas.worker.failures.requests import keeping_failures
from celery_sagas.worker.failures.unknown import KeepUnknownTasks, refuse
from celery_sagas.worker.failures.unreadable import guard_pool, guard_targets
from celery_sagas.worker.process.relay import RelayThreads
from celery_sagas.worker.requests.answers import confirm_answers
from celery_sagas.worker.runtime import Runtime, close_runtime, import_modules, runtime_of

logger = logging.getLogger("celery_sagas")

_ANOTHER_APP = (
    "%s: the last app that has started here is %r, under the same saga_prefix, %r, as this one, %r: each publishes what is due "
    "for the other, over its own broker. Give each app a saga_prefix of its own. If the app was renamed, there is nothing to do"
)


class PrepareBackend(bootsteps.StartStopStep):
    """Creates missing tables and refuses an unsafe backend. The worker's consumer starts after all other steps."""

    requires = ("celery.worker.components:Pool",)

    def create(self, worker: Any) -> None:
        """Prepare the backend before the pool's processes are made.

        They do not see a time limit of the command line. Each of them would log the default backend again, and import the
        backend's modules again, which takes longer than a thousand messages.
        """
        guard_targets(worker.pool)
        if worker.time_limit:
            worker.app.conf.task_time_limit = worker.time_limit
        if registry:
            warn_of_default_backend(worker.app)
            with suppress(Exception):  # which ``start`` meets again, when Celery logs
                import_modules(worker.app)

    def start(self, worker: Any) -> None:
        """Prepare the backend; an error ends the worker. Connections are closed: the pool's processes must not inherit them."""
        if not registry:
            return
        processes = processes_of(worker)
        try:
            prepare(worker.app, processes)
        finally:
            if processes > 1:
                close_runtime(worker.app)


class RunRelay(bootsteps.StartStopStep):
    """Runs the relay in the worker's main process, from the start of its pool until the pool ends."""

    requires = (PrepareBackend,)
    relay: RelayThreads | None = None

    def start(self, worker: Any) -> None:
        """Start the relay, unless it has no work."""
        if not registry or worker.app.conf.task_always_eager:
            return
        if not runtime_of(worker.app).settings.relay:
            logger.warning(
                "saga_relay is off: this worker sends no timeouts, and nothing that others have left in the outbox. "
                "Run `celery sagas relay`, or other workers with saga_relay on"
            )
            return
        self.relay = RelayThreads(worker.app)
        self.relay.start()

    def stop(self, worker: Any) -> None:
        """Stop the relay; the worker waits for a bounded time."""
        if self.relay is not None and not self.relay.stop():
            logger.warning("the relay did not end in time: what it is publishing may be published again")

    def terminate(self, worker: Any) -> None:
        """Stop the relay."""
        self.stop(worker)


def prepare(app: Celery, processes: int) -> None:
    """Prepare an app's backends for a number of processes that handle its messages, and check what they rely on.

    Raises:
        DefinitionError: A step is declared wrongly.
        ConfigurationError: A backend cannot be used, cannot keep the promise, or forgets too early; or a queue drops messages.
        StoreUnavailable: One cannot be reached.
    """
    definitions: list[StepDefinition | AggregatorDefinition] = [*registry.steps.values(), *registry.aggregators.values()]
    for definition in definitions:
        definition.resolve()  # the app's finalisation has not resolved those that were defined after it
    runtime = runtime_of(app)
    check_retention(app, min(map(runtime.retention_s, runtime.backends.of_sagas())))
    check_delivery_limits(app, runtime.settings.max_deliveries)
    runtime.prepare(processes=processes)
    warn_of_other_apps(app, runtime)
    for saga in registry.sagas.values():  # a store of several parts checks whether it would find this saga's instances
        runtime.backends.of(saga).sagas.find(lookup_in(saga, KEY, ""))


def check_retention(app: Celery, retention_s: float) -> None:
    """Refuse a journal that expires before the broker redelivers a message.

    Raises:
        ConfigurationError: It does; the error names the setting to change.
    """
    redelivery_s = longest_redelivery_s(app)
    if redelivery_s is not None and retention_s <= redelivery_s:
        raise ConfigurationError(
            f"the journal keeps a message for {retention_s:g} s, and the broker may deliver it again after {redelivery_s:g} s",
            f"Set saga_journal_retention to more than {redelivery_s:g}, or the transport's visibility_timeout to less",
        )


def check_delivery_limits(app: Celery, max_deliveries: int) -> None:
    """Refuse a quorum queue of RabbitMQ that drops a message before it can become a dead letter. Policies are not checked.

    Raises:
        ConfigurationError: The worker consumes from one; the error names the setting to change.
    """
    for queue in app.amqp.queues.consume_from.values():
        limit = (queue.queue_arguments or {}).get("x-delivery-limit")
        if isinstance(limit, int) and 0 <= limit <= max_deliveries:
            raise ConfigurationError(
                f"the queue {queue.name} drops a message after its x-delivery-limit of {limit}, before saga_max_deliveries "
                f"({max_deliveries}) has made a dead letter of it",
                f"Set saga_max_deliveries to less than {limit}, or declare the queue with a larger limit",
            )


def warn_of_other_apps(app: Celery, runtime: Runtime) -> None:
    """Warn if another app was the last to start under this prefix: their relays would handle each other's messages.

    Apps are distinguished by their names. An app without a name is not noted.
    """
    name = name_of(app)
    if not name:
        return
    for backend in runtime.backends:
        try:
            before = backend.note_app(name)
        except StoreError as exc:
            logger.info("%s: which apps use it is not known: %s", backend.url, exc)
            continue
        if before not in ("", name):
            logger.warning(_ANOTHER_APP, backend.url, before, runtime.settings.prefix, name)


def processes_of(worker: Any) -> int:
    """Return the number of processes that run tasks: any number above one stands for a pool with processes of its own."""
    pool = f"{worker.pool_cls.__module__}.{worker.pool_cls.__qualname__}"
    return max(2, worker.concurrency) if "prefork" in pool else 1


def add_bootstep(sender: Any = None, **_: object) -> None:
    """Add the bootsteps to a starting worker: all task modules are loaded by now, and its blueprint is not built yet.

    An answer may be requested of each of its tasks: it is published before the acknowledgement, and the requests handle failures.
    """
    import celery_sagas.worker.process.control  # noqa: F401 - imports celery.worker, which mere senders do without

    sender.app.steps["worker"].update({PrepareBackend, RunRelay})
    sender.app.steps["consumer"].add(KeepUnknownTasks)
    state: Any = import_module("celery.worker.state")
    state.should_stop = None  # an earlier worker of this process may have ended on its own; two at once share it anyway
    guard_pool(sender, refuse)
    for task in sender.app.tasks.values():
        task.Request = keeping_failures(task.Request)
        confirm_answers(task)


def connect() -> None:
    """Connect the receiver; a repeated call changes nothing."""
    signals.worker_init.connect(add_bootstep, dispatch_uid="celery_sagas.bootstep")
