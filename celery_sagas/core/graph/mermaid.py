"""A drawing in the language of Mermaid: a flowchart, since edges of its state diagrams cannot be dashed."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from celery_sagas.core.graph.drawing import Drawing, Edge, Node, Shape

#: What stands around the label of a node.
_SHAPES: Final = {
    Shape.START: "(({}))",
    Shape.END: "((({})))",
    Shape.STATUS: "([{}])",
    Shape.ANY: "([{}])",
    Shape.STEP: "[{}]",
    Shape.TASK: "[[{}]]",
    Shape.EVENT: ">{}]",
    Shape.UNKNOWN: "{{{{{}}}}}",
}
#: What stands in a label as it is; all else is written by its number, so that nothing can end the label, or be markup.
_PLAIN: Final = re.compile(r"[^\W_]|(?<=[^\W_])[_.](?=[^\W_])|[ ,()]")


def mermaid(drawing: Drawing) -> str:
    """Return a drawing in the language of Mermaid."""
    return "\n".join(["flowchart TD", *(f"    {line}" for line in _lines(drawing))])


def _lines(drawing: Drawing) -> Iterator[str]:
    yield from map(_node, drawing.nodes.values())
    yield from map(_edge, drawing.edges.values())


def _node(node: Node) -> str:
    return node.id + _SHAPES[node.shape].format(_quoted(node.lines or [" "]))


def _edge(edge: Edge) -> str:
    arrow = "-.->" if edge.is_dashed else "-->"
    label = f"|{_quoted(edge.lines)}|" if edge.lines else ""
    return f"{edge.start} {arrow}{label} {edge.end}"


def _quoted(lines: Iterable[str]) -> str:
    return f'"{"<br/>".join(map(escaped, lines))}"'


def escaped(text: str) -> str:
    """Return a text that Mermaid shows as it is."""
    return "".join(char if _PLAIN.match(text, position) else f"#{ord(char)};" for position, char in enumerate(text))
