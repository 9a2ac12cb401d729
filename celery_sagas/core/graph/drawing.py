"""A graph as nodes and edges, which every format draws in its own way."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from celery_sagas.core.graph.code import SendCall
from celery_sagas.core.graph.labels import shortened
from celery_sagas.core.graph.model import GraphStep, SagaGraph
from celery_sagas.core.graph.signatures import Ref

#: The most lines of a label.
LINES: Final = 12


class Shape(StrEnum):
    """What a node stands for."""

    START = "start"
    END = "end"
    STATUS = "status"
    ANY = "any"  #: any status
    STEP = "step"
    TASK = "task"
    EVENT = "event"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Node:
    """A node, under a name that no user has chosen."""

    id: str
    shape: Shape
    label: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """The label, within its bounds."""
        return _bounded(self.label)


@dataclass(frozen=True)
class Edge:
    """An edge from one node to another."""

    start: str
    end: str
    label: tuple[str, ...] = ()
    is_dashed: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """The label, within its bounds."""
        return _bounded(self.label)


@dataclass
class Drawing:
    """Nodes and edges, in the order in which they were found."""

    name: str
    nodes: dict[tuple[Shape, str], Node] = field(default_factory=dict)
    edges: dict[tuple[str, str, bool, str], Edge] = field(default_factory=dict)

    def node(self, shape: Shape, key: str = "", label: Iterable[str] = ()) -> str:
        """Return the id of a node, which is made if there is none."""
        if (shape, key) not in self.nodes:
            self.nodes[shape, key] = Node(f"n{len(self.nodes) + 1}", shape, tuple(label))
        return self.nodes[shape, key].id

    def connect(self, start: str, end: str, label: Iterable[str] = (), *, of: str = "", is_dashed: bool = False) -> None:
        """Add an edge; if there is one already, add to its label.

        Args:
            start: The id of the node where it begins.
            end: The id of the node where it ends.
            label: Its lines.
            of: What else tells it from others between the same nodes.
            is_dashed: Whether it is drawn dashed.
        """
        place = (start, end, is_dashed, of)
        before = self.edges[place].label if place in self.edges else ()
        self.edges[place] = Edge(start, end, (*before, *label), is_dashed)


def _bounded(lines: Iterable[str]) -> tuple[str, ...]:
    shown = [shortened(line) for line in lines if line]
    return tuple(shown if len(shown) <= LINES else [*shown[: LINES - 1], f"and {len(shown) - LINES + 1} more"])


def drawing_of(graph: SagaGraph) -> Drawing:
    """Return the drawing of a graph: of the statuses, if the saga has any, with steps as edges; else of the steps."""
    drawing = Drawing(graph.name)
    for status in graph.statuses:
        drawing.node(Shape.STATUS, status, [status])
    for step in graph.steps:
        if graph.statuses:
            _draw_transitions(drawing, graph, step)
        else:
            _draw_step(drawing, graph, step)
    return drawing


# ---- statuses


def _draw_transitions(drawing: Drawing, graph: SagaGraph, step: GraphStep) -> None:
    """Draw a step as edges; the first says all of it, the others its name."""
    label = [_titled(step), *_causes_of(graph, step), *_deeds_of(graph, step)]
    for start in _starts_of(drawing, step):
        for end in _ends_of(drawing, graph, step, start):
            is_dashed = not step.is_declared and end != _id(drawing, Shape.END)
            drawing.connect(start, end, label, of=step.name if start != end else "", is_dashed=is_dashed)
            label = label[:1]
    if step.code.completes:
        for status in step.leaves_in:
            drawing.connect(drawing.node(Shape.STATUS, status), drawing.node(Shape.END), [step.name], of=step.name)


def _starts_of(drawing: Drawing, step: GraphStep) -> Iterator[str]:
    if step.starts:
        yield drawing.node(Shape.START)
    for status in step.when:
        yield drawing.node(Shape.STATUS, status)
    if not step.when and step.runs_on_existing and not (step.starts and not step.leaves_in):
        yield drawing.node(Shape.ANY, label=["any status"])


def _ends_of(drawing: Drawing, graph: SagaGraph, step: GraphStep, start: str) -> list[str]:
    """Return where the edges of a step end that begin in a status."""
    ends = [drawing.node(Shape.STATUS, status) for status in step.leaves_in]
    if step.code.sets_unknown and not step.is_declared:
        ends.append(_other_status(drawing))
    if not ends and step.code.completes:
        ends = [drawing.node(Shape.END)]
    if not ends and start == _id(drawing, Shape.START):
        ends = [drawing.node(Shape.STATUS, graph.default) if graph.default else _other_status(drawing)]
    return ends or [start]


def _other_status(drawing: Drawing) -> str:
    return drawing.node(Shape.UNKNOWN, label=["another status"])


def _id(drawing: Drawing, shape: Shape) -> str | None:
    """Return the id of the one node of a shape, if it is drawn."""
    node = drawing.nodes.get((shape, ""))
    return node.id if node is not None else None


def _titled(step: GraphStep) -> str:
    return f"{step.name}, if {step.condition}" if step.condition else step.name


def _causes_of(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    """Yield what a step's messages come of, as far as the saga itself has them sent."""
    if step.event:
        yield f"on {step.event}"
    links = graph.links_to(step)
    yield from dict.fromkeys(f"on {link.cause} of {_tasks(graph, link.of)}" if link.of else link.how for link in links)


def _deeds_of(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    """Yield what a step does."""
    for sent in graph.requests_of(step):
        later, undo = f" after {sent.after}" if sent.after else "", f", {_undo(graph, sent)}" if sent.undo else ""
        yield f"{'gathers' if sent.is_gather else 'sends'} {_tasks(graph, sent)}{later}{undo}"
    for link in graph.links:
        if link.source == step.name and not link.to.is_known:
            yield f"{link.how}: {link.to.name}"
    yield from _marks_of(step)
    yield from (f"publishes {event}" for event in step.code.events)


def _marks_of(step: GraphStep) -> Iterator[str]:
    if step.code.compensates:
        yield "undoes what was done"
    if step.code.replies:
        yield "replies"
    yield from step.code.notes


def _tasks(graph: SagaGraph, sent: SendCall) -> str:
    return (", " if sent.is_gather else " or ").join(graph.short(ref) for ref in sent.tasks)


def _undo(graph: SagaGraph, sent: SendCall) -> str:
    return f"undo {' or '.join(graph.short(ref) for ref in sent.undo)}"


# ---- steps


def _draw_step(drawing: Drawing, graph: SagaGraph, step: GraphStep) -> None:
    """Draw a step as a node, with what leads to it and away from it."""
    node = _node_of(drawing, step)
    if step.starts:
        drawing.connect(drawing.node(Shape.START), node)
    if step.event:
        drawing.connect(drawing.node(Shape.EVENT, step.event, [step.event]), node)
    for number, sent in enumerate(graph.requests_of(step)):
        _draw_request(drawing, graph, step, sent, f"{step.name} {number}")
    for link in graph.links:
        if link.source == step.name and link.of is None:
            drawing.connect(node, _target(drawing, graph, link.to), [link.how], of=link.how)
    for event in step.code.events:
        drawing.connect(node, drawing.node(Shape.EVENT, event, [event]), ["publishes"])
    if step.code.completes:
        drawing.connect(node, drawing.node(Shape.END))


def _node_of(drawing: Drawing, step: GraphStep) -> str:
    return drawing.node(Shape.STEP, step.name, [_titled(step), *_marks_of(step)])


def _draw_request(drawing: Drawing, graph: SagaGraph, step: GraphStep, sent: SendCall, key: str) -> None:
    label = [_tasks(graph, sent), _undo(graph, sent) if sent.undo else ""]
    task = drawing.node(Shape.TASK, key, label)
    how = ["gathers" if sent.is_gather else "sends", f"after {sent.after}" if sent.after else ""]
    drawing.connect(_node_of(drawing, step), task, [" ".join(filter(None, how))])
    for link in graph.links:
        if link.source == step.name and link.of == sent:
            drawing.connect(task, _target(drawing, graph, link.to), [link.how, link.limit.lstrip(", ")], of=link.how)


def _target(drawing: Drawing, graph: SagaGraph, ref: Ref) -> str:
    found = next((step for step in graph.steps if ref == Ref(step.name)), None)
    return _node_of(drawing, found) if found else drawing.node(Shape.UNKNOWN, ref.name, [ref.name])
