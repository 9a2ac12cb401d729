"""Reads the facts: of the app's settings and definitions, of the broker and of the backends. It changes nothing."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from celery import Celery

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.graph.model import SagaGraph
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import ConfigurationError, DefinitionError, SagaError
from celery_sagas.operate.choosing import LateRows
from celery_sagas.operate.doctor.facts import Broker, Configuration, Store
from celery_sagas.operate.explain import LATE_MS
from celery_sagas.operate.graphs import registered_graph
from celery_sagas.operate.switching import held_in
from celery_sagas.settings import Settings, is_default_backend, read_settings
from celery_sagas.stores.health import Subject
from celery_sagas.stores.instances import MOST
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxGlance
from celery_sagas.stores.secrets import hide
from celery_sagas.worker.backends import Backends, default_file, open_backends, retention_s
from celery_sagas.worker.celery_internals import longest_redelivery_s
from celery_sagas.worker.checks import check_definitions
from celery_sagas.worker.process.bootsteps import check_delivery_limits
from celery_sagas.worker.publishing import open_publisher
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher
from celery_sagas.worker.runtime import refuse_stand_in, within

#: RabbitMQ's ``consumer_timeout``, unless its configuration says otherwise. Seconds.
_CONSUMER_TIMEOUT_S: Final = 1_800.0
#: How long the broker may take to answer. Seconds.
_BROKER_S: Final = 12.0
#: How many rows of the outbox are looked at for those that have failed, and counted at most.
_ROWS: Final = 5_000
#: How many instances of a saga are looked at for their schema version: those that changed last.
_INSTANCES: Final = MOST


class Opened(NamedTuple):
    """An app whose modules are imported, and whose backends are open; nothing is connected."""

    refusals: Sequence[tuple[str, str]]  #: why a worker would not start, as far as it is known: problem and remedy
    settings: Settings | None  #: ``None``: they are refused
    backends: Backends | None


def open_app(app: Celery) -> Opened:
    """Import what an app defines, and open what its settings name; what is refused is told."""
    refusals = list(filter(None, [_refused(partial(_import, app)), _refused(partial(refuse_stand_in, app))]))
    try:
        settings = read_settings(app.conf)
        return Opened(refusals, settings, open_backends(app, settings))
    except SagaError as exc:
        return Opened(list(dict.fromkeys([*refusals, _refusal(exc)])), None, None)


def _import(app: Celery) -> None:
    app.loader.import_default_modules()
    app.finalize()
    definitions: list[StepDefinition | AggregatorDefinition] = [*registry.steps.values(), *registry.aggregators.values()]
    for definition in definitions:
        definition.resolve()


def _refused(check: Callable[[], object]) -> tuple[str, str] | None:
    """Return what is refused, as problem and remedy."""
    try:
        check()
    except SagaError as exc:
        return _refusal(exc)
    return None


def _refusal(error: SagaError) -> tuple[str, str]:
    if isinstance(error, ConfigurationError):
        return error.problem, error.remedy
    return (f"{error.subject}: {error.problem}", error.remedy) if isinstance(error, DefinitionError) else (str(error), "")


def read_configuration(app: Celery, opened: Opened) -> Configuration:
    """Read what the settings and the definitions of an app say; no server is asked."""
    redelivery_s, is_assumed = _redelivery(app)
    early_requests = dict.fromkeys(pair for saga in registry.sagas.values() for pair in _early_requests(app, saga))
    return Configuration(
        refusals=[*opened.refusals, *_refusals_of_definitions(app, opened)],
        default_file=str(default_file()) if opened.settings is not None and is_default_backend(app.conf) else "",
        is_eager=bool(app.conf.task_always_eager),
        retention_s=_retention(opened),
        redelivery_s=redelivery_s,
        is_redelivery_assumed=is_assumed,
        limits_s=dict(_limits(app)),
        early_steps=[name for name in registry.steps if _is_early(app, name)],
        early_requests=list(early_requests),
        prefetch=int(app.conf.worker_prefetch_multiplier),
    )


def _refusals_of_definitions(app: Celery, opened: Opened) -> Iterator[tuple[str, str]]:
    """Yield why a worker would not start on these backends, and from its queues."""
    _, settings, backends = opened
    if settings is None or backends is None:
        return
    for check in (partial(check_definitions, settings, backends), partial(check_delivery_limits, app, settings.max_deliveries)):
        if refusal := _refused(check):
            yield refusal


def _retention(opened: Opened) -> float | None:
    """Return how long all journals of sagas remember a message; ``None`` if a wrong setting hides it."""
    _, settings, backends = opened
    if settings is None or backends is None:
        return None
    try:
        return min(retention_s(settings, backend) for backend in backends.of_sagas())
    except ConfigurationError:  # a saga names a backend that is not there, which is refused
        return None


def _redelivery(app: Celery) -> tuple[float | None, bool]:
    """Return after how many seconds the broker delivers again, and whether that is its default, which cannot be read here."""
    if _driver(app) == "amqp":
        return _CONSUMER_TIMEOUT_S, True
    try:
        return longest_redelivery_s(app), False
    except Exception:  # the URL, or the library that it needs: the broker's own rule says so
        return None, False


def _driver(app: Celery) -> str:
    """Return kombu's name of the kind of the broker; empty if its URL is wrong, or its library missing."""
    try:
        return str(app.connection_for_write().transport.driver_type)
    except Exception:
        return ""


def _limits(app: Celery) -> Iterator[tuple[str, float]]:
    """Yield the hard time limits of the tasks that are acknowledged late: others are not delivered again."""
    for name, task in app.tasks.items():
        limit = task.time_limit or app.conf.task_time_limit
        if limit and task.acks_late and not name.startswith("celery."):
            yield name, float(limit)


def _is_early(app: Celery, step: str) -> bool:
    task: Any = app.tasks.get(step)
    return task is not None and not (task.acks_late and task.reject_on_worker_lost)


def _early_requests(app: Celery, saga: SagaDefinition) -> Iterator[tuple[str, str]]:
    """Yield the steps of a saga, with each task that they ask for an answer that may never come."""
    for step, sent in _sends(_graph(saga)):
        for ref in sent.tasks if sent.then and not sent.within else ():
            task: Any = app.tasks.get(ref.name) if ref.is_known else None
            if task is not None and not task.acks_late:
                yield step, ref.name


def participants(saga: SagaDefinition) -> list[str]:
    """Return the names of the tasks to which a saga sends, as far as its code says."""
    return [ref.name for _, sent in _sends(_graph(saga)) for ref in sent.tasks if ref.is_known]


def _graph(saga: SagaDefinition) -> SagaGraph | None:
    try:
        return registered_graph(saga)
    except DefinitionError:  # which is refused
        return None


def _sends(graph: SagaGraph | None) -> Iterator[tuple[str, Any]]:
    for step in graph.steps if graph is not None else ():
        for sent in step.code.sends:
            yield step.declared.name, sent


def read_broker(app: Celery) -> Broker:
    """Connect to the broker; publish nothing."""
    options, driver = app.conf.broker_transport_options, _driver(app)
    secrets, url = list[str](), ""
    try:
        connection = app.connection_for_write()
        secrets, url = list(filter(None, [connection.password])), connection.as_uri()
        within(_BROKER_S, partial(_connect, app))
        error = ""
    except TimeoutError:
        error = f"it has not answered within {_BROKER_S:g} s"
    except Exception as exc:  # of any transport
        error = hide(f"{type(exc).__name__}: {exc}", secrets)
    confirms = options.get("confirm_publish")
    return Broker(url, driver, error, None if confirms is None else bool(confirms), bool(options.get("read_timeout")))


def _connect(app: Celery) -> None:
    with closing(open_publisher(app)) as publisher:
        if isinstance(publisher, ConfirmedPublisher):
            publisher.connected().release()


def read_store(backend: Backend, settings: Settings, sagas: Iterable[SagaDefinition], known: Mapping[str, int]) -> Store:
    """Read a backend.

    Args:
        backend: It is not changed.
        settings: Of the app.
        sagas: Those that it stores.
        known: The highest schema version of each that running code has, by the stored name.
    """
    try:
        remarks = backend.health()
        if any(remark.subject is Subject.LAYOUT for remark in remarks):
            return Store(backend.url, remarks=remarks, is_read=False)
        return _stored(backend, Store(backend.url, remarks=remarks), settings, sagas, known)
    except SagaError as exc:
        return Store(backend.url, str(exc), is_read=False)


def _stored(
    backend: Backend, facts: Store, settings: Settings, sagas: Iterable[SagaDefinition], known: Mapping[str, int]
) -> Store:
    ahead_ms = ahead(backend.outbox.time)
    now, tally, oldest_at = backend.outbox.time(), backend.outbox.tally(_ROWS), backend.journal.oldest_at()
    tried = list(islice(_tried(backend, now), _ROWS))
    untried = list(islice(LateRows(backend, now - LATE_MS).untried(), _ROWS))
    untaken = [row for row in untried if row.kind != "sent"]
    late = [row for row in tried if not row.attempts and row.tried_at <= now - LATE_MS]
    counted = {"due": tally.due, "failing": len(tried), "late": max(len(tried), len(untried))}
    return Store(
        facts.url,
        remarks=facts.remarks,
        ahead_ms=ahead_ms,
        due=tally.due,
        oldest_due_ms=now - tally.oldest_due_at if tally.oldest_due_at else 0,
        failing=[row for row in tried if row.attempts],
        late=len(late) + len(untaken),
        cut=frozenset(name for name, count in counted.items() if count >= _ROWS),
        dead_letters=backend.dead.count(),
        journal_ms=now - oldest_at if oldest_at else 0,
        retention_ms=int(retention_s(settings, backend) * 1000),
        newer=dict(_newer(backend, sagas, known)) if backend.has_instances else {},
        held=[switch.name for switch in held_in(backend)],
    )


def ahead(ask: Callable[[], int]) -> int:
    """Return how far a clock that is asked is ahead of this machine's, in milliseconds, beyond what the question has taken."""
    before = _now_ms()
    asked = ask()
    return outside(asked, before, _now_ms())


def outside(at: int, first: int, last: int) -> int:
    """Return how far a time is after the last one, or, as a negative number, before the first one; between them, 0."""
    return max(at - last, 0) + min(at - first, 0)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _tried(backend: Backend, now: int) -> Iterator[OutboxGlance]:
    page = backend.outbox.tried(now, MOST)
    while page:
        yield from page
        page = backend.outbox.tried(now, MOST, page[-1].place) if len(page) == MOST else []


def _newer(backend: Backend, sagas: Iterable[SagaDefinition], known: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the sagas with instances that no code knows, of those that changed last."""
    for saga in sagas:
        pages = (backend.instances.page(name, _INSTANCES) for name in saga.names)
        stored = max((each.schema_version for page in pages for each in page.instances), default=0)
        if stored > (newest := max(saga.schema_version, known.get(saga.name, 0))):
            yield saga.name, (stored, newest)
