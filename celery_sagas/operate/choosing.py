"""Choosing instances: all of a saga, those with a value, the paused ones, or those that no message has changed for long.

These are found by indexes. For which of them an expression holds is found out by reading their states.
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Final

from celery_sagas.core.codec import decode
from celery_sagas.core.pending import PAUSED
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.listing import glances, records_of, tag_of
from celery_sagas.errors import UnreadableState
from celery_sagas.operate.where import Test
from celery_sagas.stores.instances import MOST, Glance, glance_at, slot_of
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import OutboxGlance

#: How many instances, or rows of the outbox, are looked at.
LOOKED_AT: Final = 100_000


def chosen_of(
    backend: Backend, saga: SagaDefinition, *, paused: bool, idle_ms: int | None, by: Mapping[str, object]
) -> Iterator[Glance]:
    """Return the chosen instances of a saga, read in pages by an index.

    Raises:
        TypeError: More than one choice is given.
        DefinitionError: The saga is not listed by this field.
        CorrelationError: The value is none of the field's.
    """
    if [paused, idle_ms is not None, bool(by)].count(True) > 1:
        raise TypeError("choose by one of these: paused=, idle=, or a field in search_by")
    if idle_ms is not None:
        return idle_for(backend, saga, backend.outbox.time() - idle_ms)
    return glances(backend, saga, PAUSED if paused else tag_of(saga, by))


def idle_for(backend: Backend, saga: SagaDefinition, before: int) -> Iterator[Glance]:
    """Yield the instances that no message has changed since a time (milliseconds since the epoch), the oldest slot first."""
    oldest = glances(backend, saga, None, oldest_first=True, at_once=MOST)  # in a slot they are in no order of time
    near = takewhile(lambda glance: slot_of(glance.updated_at) <= slot_of(before), oldest)
    return (glance for glance in near if glance.updated_at <= before)


def matching(backend: Backend, saga: SagaDefinition, found: Iterator[Glance], test: Test) -> Iterator[Glance | UnreadableState]:
    """Yield those instances for whose states a test holds, as they are stored, and the errors of those that cannot be read.

    A state need not be one that today's class loads.
    """
    for _, read in records_of(backend, saga, found):
        try:
            if isinstance(read, UnreadableState):
                yield read
            elif test(decode(saga, read.key, read.data)):
                yield glance_at(read)
        except UnreadableState as exc:
            yield exc


def late_rows(backend: Backend, before: int, cut: set[str]) -> Iterator[OutboxGlance]:
    """Yield the messages that were published before a time and not handled, could not be, or that no relay has taken since.

    Args:
        backend: Has them in its outbox.
        before: Milliseconds since the epoch.
        cut: What says that there may be more is added.
    """
    after = ""
    for _ in range(LOOKED_AT // MOST):
        page = backend.outbox.tried(before, MOST, after)
        yield from page
        if not page:
            break
        after = page[-1].place
    else:
        cut.add("tried")
    untried = backend.outbox.overdue(before, MOST)
    yield from untried
    if len(untried) == MOST:
        cut.add("untried")


def saga_of(row: OutboxGlance) -> SagaDefinition | None:
    """Return the saga a step of which has decided a message; ``None`` if it was none, or the app does not define it."""
    step = registry.step_named(row.step)
    return step.saga if step else registry.saga_named(row.step.rpartition(".")[0])
