"""Marks of the steps in a graph: those that an instance has taken, and those that it waits for."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from celery_sagas.core.graph.model import SagaGraph
from celery_sagas.core.graph.names import Ref
from celery_sagas.core.pending import Pending


class Mark(StrEnum):
    """What an instance has to do with a step."""

    TAKEN = "taken"
    AWAITED = "awaited"
    AGAIN = "again"  #: it was taken, and is awaited again


#: The marks of steps, by the names that these have in the graph.
Marks: TypeAlias = Mapping[str, Mark]

#: What stands before the name of a marked step.
SIGNS: Final[Mapping[Mark, str]] = {Mark.TAKEN: "✓", Mark.AWAITED: "…", Mark.AGAIN: "↻"}
#: What the signs mean.
LEGEND: Final = ("✓ taken", "… awaited", "↻ taken, and awaited again")


def marks_of(graph: SagaGraph, taken: Iterable[str], awaited: Iterable[str]) -> Marks:
    """Return the marks of a graph's steps, by the names of steps that were taken, and of those that are awaited.

    The names may be former ones; those of steps that the saga does not have are passed over.
    """
    done, open_ = (
        {step.name for name in names if (step := graph.step_named(Ref(name))) is not None} for names in (taken, awaited)
    )
    return {name: _mark(name in done, name in open_) for name in done | open_}


def _mark(is_taken: bool, is_awaited: bool) -> Mark:
    return Mark.AGAIN if is_taken and is_awaited else Mark.TAKEN if is_taken else Mark.AWAITED


def awaited_steps(pending: Pending) -> Iterator[str]:
    """Yield the names of the steps that an instance's timeouts, the outcomes of its requests, or the end of its undo go to."""
    yield from (timeout.step for timeout in pending.timeouts.values())
    for request in pending.requests.values():
        if not (request.has_timed_out or request.is_undone or request.undoes):
            yield from filter(None, (request.then, request.otherwise, request.progress))
    if pending.undo.undoing is not None and pending.undo.undoing.then is not None:
        yield pending.undo.undoing.then.task
