"""The formats of a graph: nodes and edges, in the language of Mermaid, in that of Graphviz and in JSON, and an indented list."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, Literal

from celery_sagas.core.graph.code import SendCall
from celery_sagas.core.graph.marks import LEGEND, SIGNS, Mark, Marks
from celery_sagas.core.graph.model import GraphStep, Link, SagaGraph
from celery_sagas.core.graph.names import Ref, shortened

#: What a node stands for: among others one status, any status, or one that is not known.
Shape = Literal["start", "end", "status", "any", "step", "task", "event", "unknown", "legend"]
#: A node: its shape, and what tells it from others of that shape.
Node = tuple[Shape, str]
#: An edge: from where, to where, whether it is dashed, and what tells it from others between the same nodes.
Edge = tuple[Node, Node, bool, str]
#: The most lines of a label, and the most characters of a line of a list.
LINES: Final = 12
WIDTH: Final = 160
#: What stands around the label of a node in Mermaid's language, and its attributes in that of Graphviz.
SHAPES: Final[Mapping[Shape, tuple[str, str]]] = {
    "start": ("(({}))", "shape=circle, width=0.2, style=filled, fillcolor=black"),
    "end": ("((({})))", "shape=doublecircle, width=0.15, style=filled, fillcolor=black"),
    "status": ("([{}])", 'shape=box, style="rounded,bold"'),
    "any": ("([{}])", 'shape=box, style="rounded,dashed"'),
    "step": ("[{}]", "shape=box"),
    "task": ("[[{}]]", "shape=component"),
    "event": (">{}]", "shape=cds"),
    "unknown": ("{{{{{}}}}}", "shape=box, style=dotted"),
    "legend": ("[{}]", "shape=note"),
}
#: The colours of what is marked, and of its outline.
COLOURS: Final[Mapping[Mark, tuple[str, str]]] = {
    Mark.TAKEN: ("#c8e6c9", "#2e7d32"),
    Mark.AWAITED: ("#fff3c4", "#b26a00"),
    Mark.AGAIN: ("#dce8f8", "#1f5fa8"),
}
#: What stands in Mermaid's labels as it is; all else is written by its number, so that nothing can end a label, or be markup.
_PLAIN: Final = re.compile(r"[^\W_]|(?<=[^\W_])[_.](?=[^\W_])|[ ,()]")
_WHOLE: Final[Callable[[Ref], str]] = attrgetter("name")


@dataclass
class Drawing:
    """Nodes and edges with the lines of their labels, in the order in which they were found."""

    name: str
    steps: Marks = field(default_factory=dict)
    nodes: dict[Node, list[str]] = field(default_factory=dict)
    edges: dict[Edge, list[str]] = field(default_factory=dict)
    marked: dict[Node | Edge, Mark] = field(default_factory=dict)

    def node(self, shape: Shape, key: str = "", *label: str) -> Node:
        """Add a node, if there is none such."""
        self.nodes.setdefault((shape, key), [*label])
        return shape, key

    def connect(self, start: Node, end: Node, *label: str, of: str = "", is_dashed: bool = False) -> Edge:
        """Add an edge; if there is one such, add to its label."""
        edge = start, end, is_dashed, of
        self.edges.setdefault(edge, []).extend(label)
        return edge

    def mark(self, part: Node | Edge, step: GraphStep) -> None:
        """Give a node or an edge the mark of a step, if that has one."""
        if step.name in self.steps:
            self.marked[part] = self.steps[step.name]


def drawing_of(graph: SagaGraph, marks: Marks | None = None) -> Drawing:
    """Return the drawing of a graph: of the statuses, if the saga has any, with steps as edges; else of the steps."""
    drawing = Drawing(graph.name, marks or {})
    for status in graph.statuses:
        drawing.node("status", status, status)
    for step in graph.steps:
        (_draw_transitions if graph.statuses else _draw_step)(drawing, graph, step)
    if marks is not None:
        drawing.node("legend", "", *LEGEND)
    return drawing


def tasks_of(sent: SendCall, name: Callable[[Ref], str]) -> str:
    """Return what is sent."""
    return (", " if sent.is_gather else " or ").join(map(name, sent.tasks))


def undo_of(sent: SendCall, name: Callable[[Ref], str]) -> str:
    """Return what undoes it."""
    return f"undo {' or '.join(map(name, sent.undo))}" if sent.undo else ""


def sending(sent: SendCall, name: Callable[[Ref], str] | None = None) -> str:
    """Return that a step sends, and when; by names also what, and what undoes it."""
    verb, later = "gathers" if sent.is_gather else "sends", f" after {sent.after}" if sent.after else ""
    if name is None:
        return verb + later
    return ", ".join(filter(None, [f"{verb} {tasks_of(sent, name)}{later}", undo_of(sent, name)]))


def _titled(drawing: Drawing, step: GraphStep) -> str:
    named = _named(drawing, step)
    return f"{named}, if {step.condition}" if step.condition else named


def _named(drawing: Drawing, step: GraphStep) -> str:
    return f"{SIGNS[drawing.steps[step.name]]} {step.name}" if step.name in drawing.steps else step.name


def _causes_of(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    """Yield what a step's messages come of, as far as the saga itself has them sent."""
    if step.event:
        yield f"on {step.event}"
    links = graph.links_to(step)
    yield from dict.fromkeys(f"on {link.cause} of {tasks_of(link.of, graph.short)}" if link.of else link.how for link in links)


def _deeds_of(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    """Yield what a step does."""
    yield from (sending(sent, graph.short) for sent in graph.requests_of(step))
    unknown = (link for link in graph.links if link.source == step.name and not link.to.is_known)
    yield from (f"{link.how}: {link.to.name}" for link in unknown)
    yield from step.marks
    yield from step.code.notes
    yield from (f"publishes {event}" for event in step.code.events)


def _draw_transitions(drawing: Drawing, graph: SagaGraph, step: GraphStep) -> None:
    """Draw a step as edges; the first says all of it, the others its name."""
    label = [_titled(drawing, step), *_causes_of(graph, step), *_deeds_of(graph, step)]
    for start in _starts_of(drawing, step):
        for end in _ends_of(drawing, graph, step, start):
            is_dashed = not step.declared.status.to and end != ("end", "")
            of = step.name if start != end or step.name in drawing.steps else ""
            drawing.mark(drawing.connect(start, end, *label, of=of, is_dashed=is_dashed), step)
            label = label[:1]
    for status in step.leaves_in if step.code.completes else ():
        edge = drawing.connect(("status", status), drawing.node("end"), _named(drawing, step), of=step.name)
        drawing.mark(edge, step)


def _starts_of(drawing: Drawing, step: GraphStep) -> Iterator[Node]:
    if step.declared.starts:
        yield drawing.node("start")
    yield from (("status", status) for status in step.declared.status.when)
    if not step.declared.status.when and step.runs_on_existing and not (step.declared.starts and not step.leaves_in):
        yield drawing.node("any", "", "any status")


def _ends_of(drawing: Drawing, graph: SagaGraph, step: GraphStep, start: Node) -> Iterable[Node]:
    """Return where the edges of a step end that begin in a status."""
    ends: list[Node] = [("status", status) for status in step.leaves_in]
    if step.code.sets_unknown and not step.declared.status.to:
        ends.append(drawing.node("unknown", "", "another status"))
    if ends:
        return ends
    if step.code.completes:
        return [drawing.node("end")]
    if start == ("start", ""):
        return [("status", graph.default) if graph.default else drawing.node("unknown", "", "another status")]
    return [start]


def _draw_step(drawing: Drawing, graph: SagaGraph, step: GraphStep) -> None:
    """Draw a step as a node, with what leads to it and away from it."""
    node = _node_of(drawing, step)
    if step.declared.starts:
        drawing.connect(drawing.node("start"), node)
    if step.event:
        drawing.connect(drawing.node("event", step.event, step.event), node)
    for number, sent in enumerate(graph.requests_of(step)):
        task = drawing.node("task", f"{step.name} {number}", tasks_of(sent, graph.short), undo_of(sent, graph.short))
        drawing.connect(node, task, sending(sent))
        _draw_links(drawing, graph, step, task, sent)
    _draw_links(drawing, graph, step, node)
    for event in step.code.events:
        drawing.connect(node, drawing.node("event", event, event), "publishes")
    if step.code.completes:
        drawing.connect(node, drawing.node("end"))


def _draw_links(drawing: Drawing, graph: SagaGraph, step: GraphStep, start: Node, of: SendCall | None = None) -> None:
    for link in graph.links_from(step, of):
        found = next((each for each in graph.steps if Ref(each.name) == link.to), None)
        end = _node_of(drawing, found) if found else drawing.node("unknown", link.to.name, link.to.name)
        drawing.connect(start, end, link.how, link.limit.lstrip(", "), of=link.how)


def _node_of(drawing: Drawing, step: GraphStep) -> Node:
    node = drawing.node("step", step.name, _titled(drawing, step), *step.marks, *step.code.notes)
    drawing.mark(node, step)
    return node


def mermaid(drawing: Drawing) -> str:
    """Return a drawing in Mermaid's language: as a flowchart, since edges of its state diagrams cannot be dashed."""
    ids = {node: f"n{number}" for number, node in enumerate(drawing.nodes, 1)}
    lines = [f"{ids[node]}{SHAPES[node[0]][0].format(_mermaid(label))}" for node, label in drawing.nodes.items()]
    for (start, end, is_dashed, _), label in drawing.edges.items():
        shown = f"|{_mermaid(label)}|" if any(label) else ""
        lines += [f"{ids[start]} {'-.->' if is_dashed else '-->'}{shown} {ids[end]}"]
    return "\n    ".join(["flowchart TD", *lines, *_mermaid_styles(drawing, ids)])


def _mermaid_styles(drawing: Drawing, ids: Mapping[Node, str]) -> Iterator[str]:
    edges = {edge: str(number) for number, edge in enumerate(drawing.edges)}
    for mark, (colour, outline) in COLOURS.items():
        if nodes := [id for node, id in ids.items() if drawing.marked.get(node) is mark]:
            yield f"classDef {mark} fill:{colour},stroke:{outline},color:#000000"
            yield f"class {','.join(nodes)} {mark}"
        if numbers := [number for edge, number in edges.items() if drawing.marked.get(edge) is mark]:
            yield f"linkStyle {','.join(numbers)} stroke:{outline},stroke-width:3px"


def _mermaid(label: Iterable[str]) -> str:
    lines = ("".join(c if _PLAIN.match(line, at) else f"#{ord(c)};" for at, c in enumerate(line)) for line in bounded(label))
    return f'"{"<br/>".join(lines) or " "}"'


def dot(drawing: Drawing) -> str:
    """Return a drawing in the language of Graphviz."""
    ids = {node: f"n{number}" for number, node in enumerate(drawing.nodes, 1)}
    lines = [f"{ids[node]} [{_dot_node(drawing, node, label)}];" for node, label in drawing.nodes.items()]
    for edge, label in drawing.edges.items():
        styles = ", ".join([f"label={_dot(label)}"] * any(label) + ["style=dashed"] * edge[2] + _dot_marks(drawing, edge))
        lines += [f"{ids[edge[0]]} -> {ids[edge[1]]}{f' [{styles}]' if styles else ''};"]
    return "\n    ".join([f"digraph {_dot([drawing.name])} {{", *lines]) + "\n}"


def as_json(drawing: Drawing) -> str:
    """Return a drawing as one JSON object; a node is named by its position."""
    numbers = {node: number for number, node in enumerate(drawing.nodes)}
    marks = {part: mark.value for part, mark in drawing.marked.items()}
    nodes = [{"kind": node[0], "label": label, "mark": marks.get(node)} for node, label in drawing.nodes.items()]
    edges = [
        {"from": numbers[edge[0]], "to": numbers[edge[1]], "dashed": edge[2], "label": label, "mark": marks.get(edge)}
        for edge, label in drawing.edges.items()
    ]
    return json.dumps({"saga": drawing.name, "nodes": nodes, "edges": edges})


def _dot_node(drawing: Drawing, node: Node, label: Iterable[str]) -> str:
    filled = [f'style=filled, fillcolor="{COLOURS[drawing.marked[node]][0]}"'] if node in drawing.marked else []
    return ", ".join([f"label={_dot(label)}", SHAPES[node[0]][1], *filled, *_dot_marks(drawing, node)])


def _dot_marks(drawing: Drawing, part: Node | Edge) -> list[str]:
    return [f'color="{COLOURS[drawing.marked[part]][1]}", penwidth=3'] if part in drawing.marked else []


def _dot(label: Iterable[str]) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in bounded(label))
    return '"' + r"\n".join(escaped) + '"'


def bounded(label: Iterable[str]) -> list[str]:
    """Return the lines of a label that are shown."""
    shown = [shortened(line) for line in label if line]
    return shown if len(shown) <= LINES else [*shown[: LINES - 1], f"and {len(shown) - LINES + 1} more"]


def text(graph: SagaGraph, marks: Marks | None = None) -> str:
    """Return a graph as an indented list: each step, what leads to it, and what it does."""
    lines = [graph.name]
    if graph.statuses:
        shown = (f"{status} (the default)" if status == graph.default else status for status in graph.statuses)
        lines.append(f"  statuses: {', '.join(shown)}")
    for step in graph.steps:
        said = [*_runs_in(graph, step), *(_cause(link) for link in graph.links_to(step)), *_does(graph, step)]
        sign = SIGNS[marks[step.name]] if marks and step.name in marks else " "
        lines += ["", f"{sign} {step.name}", *(f"    {line}" for line in said)]
    if marks is not None:
        lines += ["", "   ".join(LEGEND)]
    return "\n".join(shortened(line, WIDTH) for line in lines)


def _runs_in(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    if step.declared.starts and not graph.statuses:
        yield "starts an instance"
    if step.condition:
        yield f"if {step.condition}"
    if graph.statuses:
        starts = ["start"] * step.declared.starts + [*step.declared.status.when] * step.runs_on_existing
        yield f"{' or '.join(starts) or 'any status'} → {' or '.join(_left_in(graph, step))}"
    if step.event:
        yield f"on the event {step.event}"


def _left_in(graph: SagaGraph, step: GraphStep) -> Iterable[str]:
    """Return where a step leads; in brackets what its code says, and it does not declare."""
    if step.declared.status.to:
        return step.declared.status.to
    found = [f"({status})" for status in step.leaves_in] + ["(another status)"] * step.code.sets_unknown
    by_default = [graph.default] if step.declared.starts and graph.default else ["the same"]
    return found or (["the end"] if step.code.completes else by_default)


def _cause(link: Link) -> str:
    if link.of is None:
        return f"{link.how}, by {link.source}"
    return f"on {link.cause} of {tasks_of(link.of, _WHOLE)}{link.limit}, sent by {link.source}"


def _does(graph: SagaGraph, step: GraphStep) -> Iterator[str]:
    for sent in graph.requests_of(step):
        yield sending(sent, _WHOLE)
        yield from (f"  {link.how}{link.limit}: {link.to.name}" for link in graph.links_from(step, sent))
    yield from (f"{link.how}: {link.to.name}" for link in graph.links_from(step))
    yield from (f"publishes {event}" for event in step.code.events)
    yield from step.marks
    if step.code.completes:
        yield "completes the instance"
    yield from (f"note: {note}" for note in step.code.notes)
