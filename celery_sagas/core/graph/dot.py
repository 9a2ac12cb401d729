"""A drawing in the language of Graphviz."""

from collections.abc import Iterable
from typing import Final

from celery_sagas.core.graph.drawing import Drawing, Edge, Node, Shape

_SHAPES: Final = {
    Shape.START: "shape=circle, width=0.2, style=filled, fillcolor=black",
    Shape.END: "shape=doublecircle, width=0.15, style=filled, fillcolor=black",
    Shape.STATUS: 'shape=box, style="rounded,bold"',
    Shape.ANY: 'shape=box, style="rounded,dashed"',
    Shape.STEP: "shape=box",
    Shape.TASK: "shape=component",
    Shape.EVENT: "shape=cds",
    Shape.UNKNOWN: "shape=box, style=dotted",
}


def dot(drawing: Drawing) -> str:
    """Return a drawing in the language of Graphviz."""
    body = [*map(_node, drawing.nodes.values()), *map(_edge, drawing.edges.values())]
    return "\n".join([f"digraph {quoted([drawing.name])} {{", *(f"    {line}" for line in body), "}"])


def _node(node: Node) -> str:
    return f"{node.id} [label={quoted(node.lines)}, {_SHAPES[node.shape]}];"


def _edge(edge: Edge) -> str:
    marks = [f"label={quoted(edge.lines)}" if edge.lines else "", "style=dashed" if edge.is_dashed else ""]
    shown = ", ".join(filter(None, marks))
    return f"{edge.start} -> {edge.end}{f' [{shown}]' if shown else ''};"


def quoted(lines: Iterable[str]) -> str:
    """Return lines as one quoted text, which Graphviz shows as they are."""
    return '"' + r"\n".join(map(_escaped, lines)) + '"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
