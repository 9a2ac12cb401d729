"""A graph as an indented list."""

from collections.abc import Iterable, Iterator

from celery_sagas.core.graph.code import SendCall
from celery_sagas.core.graph.labels import shortened
from celery_sagas.core.graph.model import GraphStep, Link, SagaGraph
from celery_sagas.core.graph.signatures import Ref

_WIDTH = 160


def text(graph: SagaGraph) -> str:
    """Return a graph as an indented list: each step, what leads to it, and what it does."""
    lines = [graph.name, *_statuses(graph)]
    for step in graph.steps:
        lines += ["", f"  {step.name}", *(f"    {line}" for line in _about(graph, step))]
    return "\n".join(shortened(line, _WIDTH) for line in lines)


def _statuses(graph: SagaGraph) -> Iterator[str]:
    if graph.statuses:
        shown = (f"{status} (the default)" if status == graph.default else status for status in graph.statuses)
        yield f"  statuses: {', '.join(shown)}"


def _about(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    if step.starts and not graph.statuses:
        yield "starts an instance"
    yield from _runs_in(graph, step)
    yield from _causes(graph, step)
    yield from _does(graph, step)
    yield from (f"note: {note}" for note in step.code.notes)


def _runs_in(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    if step.condition:
        yield f"if {step.condition}"
    if graph.statuses:
        starts = ["start"] * step.starts + [*step.when] * step.runs_on_existing
        yield f"{' or '.join(starts) or 'any status'} → {' or '.join(_left_in(graph, step))}"


def _left_in(graph: SagaGraph, step: GraphStep) -> Iterable[str]:
    """Return where a step leads; in brackets what its code says, and it does not declare."""
    if step.is_declared:
        return step.leaves_in
    found = [f"({status})" for status in step.leaves_in] + ["(another status)"] * step.code.sets_unknown
    by_default = [graph.default] if step.starts and graph.default else ["the same"]
    return found or (["the end"] if step.code.completes else by_default)


def _causes(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    if step.event:
        yield f"on the event {step.event}"
    yield from (_cause(link) for link in graph.links_to(step))


def _cause(link: Link) -> str:
    if link.of is None:
        return f"{link.how}, by {link.source}"
    return f"on {link.cause} of {_named(link.of.tasks, link.of)}{link.limit}, sent by {link.source}"


def _does(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    for sent in graph.requests_of(step):
        yield from _sends(graph, step, sent)
    for link in graph.links:
        if link.source == step.name and link.of is None:
            yield f"{link.how}: {link.to.name}"
    yield from (f"publishes {event}" for event in step.code.events)
    if step.code.compensates:
        yield "undoes what was done"
    if step.code.replies:
        yield "replies"
    if step.code.completes:
        yield "completes the instance"


def _sends(graph: SagaGraph, step: GraphStep, sent: SendCall) -> Iterator[str]:
    later, undo = f" after {sent.after}" if sent.after else "", f", undo {_named(sent.undo)}" if sent.undo else ""
    yield f"{'gathers' if sent.is_gather else 'sends'} {_named(sent.tasks, sent)}{later}{undo}"
    for link in graph.links:
        if link.source == step.name and link.of == sent:
            yield f"  {link.how}{link.limit}: {link.to.name}"


def _named(refs: Iterable[Ref], sent: SendCall | None = None) -> str:
    return (", " if sent is not None and sent.is_gather else " or ").join(ref.name for ref in refs)
