"""The graphs of the sagas that an app has registered, and what Celery's objects are called in them."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from celery import Task
from celery.canvas import Signature
from celery.exceptions import NotRegistered
from celery.local import Proxy

from celery_sagas.core.graph.code import Vocabulary
from celery_sagas.core.graph.model import SagaGraph, graph_of
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.outcomes import Kind
from celery_sagas.stores.records import Entry
from celery_sagas.worker.events import publish

#: The outcomes of the messages of which the step has run.
_TAKEN: Final = frozenset({Kind.STARTED.value, Kind.HANDLED.value, Kind.COMPLETED.value})


def registered_graph(saga: SagaDefinition) -> SagaGraph:
    """Return the graph of a saga and of the steps that are registered for it.

    Raises:
        DefinitionError: The saga, or a step, is declared wrongly.
    """
    return graph_of(saga, registry.steps_of(saga), Vocabulary(_task_name, publish))


def taken_steps(entries: Iterable[Entry], id: str) -> Iterator[str]:
    """Yield the steps that have run for an instance, by its id, as the entries of a journal say."""
    return (entry.step for entry in entries if entry.instance_id == id and entry.outcome in _TAKEN)


def _task_name(value: Any) -> str | None:
    """Return the name of a task, which may be a proxy, or of a signature's task; ``None`` for anything else."""
    if issubclass(type(value), Signature):
        return str(value.task)
    if not issubclass(type(value), Task | Proxy):
        return None
    try:
        name = getattr(value, "name", None) if isinstance(value, Task) else None
    except NotRegistered:
        return None
    return name if isinstance(name, str) else None
