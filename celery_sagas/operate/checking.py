"""Whether today's code can go on with what is stored: each live instance is loaded, as its next message would load it."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from celery import Celery
from pydantic import ValidationError

from celery_sagas.core.codec import validation_problems
from celery_sagas.core.pending import Pending
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.forms import form_of
from celery_sagas.engine.instance import pending_of
from celery_sagas.engine.listing import glances, records_of
from celery_sagas.errors import InvalidState, NewerState, UnreadableState
from celery_sagas.stores.instances import MOST, check_place
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxGlance, Record
from celery_sagas.worker.runtime import Runtime

#: How many rows of an outbox are looked at.
_ROWS: Final = 100_000


class Problem(NamedTuple):
    """Why an instance cannot go on."""

    path: str  #: of a field, or of what the instance waits for; empty: it is about the whole
    text: str  #: without values


class Checked(NamedTuple):
    """An instance that was looked at."""

    saga: str  #: the stored name
    key: str  #: empty: the record is damaged
    id: str
    place: str  #: where to go on after it; empty: the record is damaged
    problems: tuple[Problem, ...]
    is_old: bool  #: whether today's code would store it in another form


def check_instances(runtime: Runtime, saga: SagaDefinition, after: str = "") -> Iterator[Checked]:
    """Look at each live instance of a saga, in pages, those that were committed last first; nothing is written.

    One that is committed meanwhile may be missed.

    Args:
        runtime: The app's.
        saga: The saga.
        after: ``Checked.place`` of the last one that was looked at before; empty, to begin.

    Raises:
        ConfigurationError: The backend lists no instances.
        ValueError: ``after`` is no place.
        StoreError: The store is away.
    """
    if after:
        check_place(after)
    backend = runtime.backends.of(saga)
    is_known = _known_in(runtime.app)
    for glance, record in records_of(backend, saga, glances(backend, saga, None, after=after)):
        problems, is_old = _looked_at(saga, record, is_known)
        known = record if isinstance(record, Record) else glance
        yield Checked(saga.name, known.key, glance.id, glance.place if glance.version else "", tuple(problems), is_old)


def _looked_at(
    saga: SagaDefinition, record: Record | UnreadableState, is_known: Callable[[str], bool]
) -> tuple[list[Problem], bool]:
    """Return the problems of an instance, and whether its form is an old one."""
    if isinstance(record, UnreadableState):
        return [Problem("", record.problem)], False
    try:
        pending = pending_of(record)
    except (UnreadableState, NewerState) as exc:
        return _problems_of(exc), False
    unknown = [Problem(path, f"this app has no step {step}") for path, step in steps_in(pending) if not is_known(step)]
    try:
        form = form_of(saga, record, pending)
    except (UnreadableState, NewerState) as exc:
        return [*_problems_of(exc), *unknown], False
    except InvalidState as exc:
        return [*(Problem(path, text) for path, text in exc.problems), *unknown], False
    except Exception as exc:  # whatever upgrade() or a validator raises: the other instances are looked at, too
        return [Problem("", f"loading it raised {type(exc).__name__}"), *unknown], False
    return unknown, not form.is_that_of(record, pending)


def _problems_of(error: UnreadableState | NewerState) -> list[Problem]:
    if isinstance(error, NewerState):
        return [Problem("", "newer code wrote it")]
    if isinstance(error.__cause__, ValidationError):
        return [Problem(path, text) for path, text in validation_problems(error.__cause__)]
    return [Problem("", error.problem)]


def steps_in(pending: Pending) -> Iterator[tuple[str, str]]:
    """Yield the steps that what an instance waits for goes to, each with what that is."""
    for name, timeout in pending.timeouts.items():
        yield f"timeouts.{name}", timeout.step
    for id, request in pending.requests.items():
        for step in filter(None, (request.then, request.otherwise, request.progress)):
            yield f"requests.{id}", step
    if pending.undo.undoing is not None and pending.undo.undoing.then is not None:
        yield "undo", pending.undo.undoing.then.task
    for deferred in pending.deferred:
        yield f"deferred.{deferred.id}", deferred.step


def unknown_tasks(runtime: Runtime, backend: Backend) -> Counter[str]:
    """Count the messages that are due in an outbox, by tasks that the app does not have: perhaps those of other services."""
    is_known = _known_in(runtime.app)
    return Counter(row.task for row in _due(backend) if not is_known(row.task))


def _due(backend: Backend) -> Iterator[OutboxGlance]:
    """Yield messages that are due and were never tried, then those that were tried."""
    now, after, looked_at = backend.outbox.time(), "", 0
    while looked_at < _ROWS:
        page = backend.outbox.overdue(now, MOST, after)
        yield from page.rows
        after, looked_at = page.after, looked_at + MOST
        if not after:
            break
    after = ""
    for _ in range(_ROWS // MOST):
        tried = backend.outbox.tried(now, MOST, after)
        yield from tried
        if len(tried) < MOST:
            return
        after = tried[-1].place


def _known_in(app: Celery) -> Callable[[str], bool]:
    """Return a function that tells whether the app has a task, or a step under a present or a former name."""
    steps = {name for step in registry.steps.values() for name in step.names}
    return lambda name: name in steps or name in app.tasks
