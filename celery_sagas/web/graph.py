"""The drawing of a saga as a picture: boxes in layers, from top to bottom, and lines between them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from celery_sagas.core.graph.drawing import Drawing, bounded
from celery_sagas.core.graph.marks import LEGEND

#: Sizes, in pixels.
_CHARACTER: Final = 7
_LINE: Final = 16
_PADDING: Final = 10
_GAP, _LAYER_GAP, _MARGIN = 28, 46, 12
_DOT: Final = 16
#: How many characters of a line are shown, and how often the order within layers is improved.
_CHARACTERS: Final = 34
_SWEEPS: Final = 6
#: What has more boxes is not drawn.
MOST: Final = 150


#: What has a place: a box, by its shape and what tells it from others, or a point of a long connection.
Place: TypeAlias = tuple[str, str]


class Box(NamedTuple):
    """A box of a picture."""

    shape: str
    mark: str
    x: float  #: of its left upper corner
    y: float
    width: float
    height: float
    lines: Sequence[str]
    title: str  #: the whole text

    def baseline(self, number: int) -> float:
        """Return where a line of its text stands."""
        return self.y + _PADDING + number * _LINE + 11


class Line(NamedTuple):
    """A line of a picture, with an arrow at its end."""

    path: str
    mark: str
    is_dashed: bool
    label: str
    x: float  #: of the middle of its label
    y: float


class Picture(NamedTuple):
    """What is drawn."""

    name: str
    width: float
    height: float
    boxes: Sequence[Box]
    lines: Sequence[Line]
    legend: Sequence[str]  #: what the marks mean; empty: there are none


@dataclass
class _Net:
    """Boxes and connections before they have places; a long connection has points in the layers that it crosses."""

    labels: dict[Place, Sequence[str]] = field(default_factory=dict)
    marks: dict[Place, str] = field(default_factory=dict)
    edges: list[tuple[Place, Place, bool, str, str]] = field(default_factory=list)  #: with whether it is dashed, label, mark


def picture_of(drawing: Drawing) -> Picture:
    """Return the picture of a drawing; one of too many boxes is empty."""
    net = _net_of(drawing)
    legend = LEGEND if any(node[0] == "legend" for node in drawing.nodes) else ()
    if len(net.labels) > MOST:
        return Picture(drawing.name, 0, 0, (), (), legend)
    layers = _layers(net)
    chains = _chains(net, layers)
    rows = _rows(net, layers, chains)
    boxes = _placed(net, rows)
    lines = [_line(boxes, chain, edge) for chain, edge in zip(chains, net.edges, strict=True)]
    shown = [box for node, box in boxes.items() if node[0] != "point"]
    back = any(layers[edge[1]] <= layers[edge[0]] for edge in net.edges)
    width = max((box.x + box.width for box in boxes.values()), default=0) + _MARGIN + (_GAP * 2 if back else 0)
    height = max((box.y + box.height for box in shown), default=0) + _MARGIN
    return Picture(drawing.name, width, height, shown, lines, legend)


def _net_of(drawing: Drawing) -> _Net:
    """Return the boxes and connections of a drawing; a connection with much to say becomes a box between two others."""
    net, marks = _Net(), {part: mark.value for part, mark in drawing.marked.items()}
    for node, label in drawing.nodes.items():
        if node[0] != "legend":
            net.labels[node], net.marks[node] = bounded(label), marks.get(node, "")
    for edge, label in drawing.edges.items():
        start, end, is_dashed, _of = edge
        said, mark = bounded(label), marks.get(edge, "")
        if len(said) <= 1 and not any(node[0] in ("status", "any") for node in (start, end)):
            net.edges.append((start, end, is_dashed, said[0] if said else "", mark))
            continue
        between: Place = ("step", said[0] if said else "")
        if (between, start, False, "", mark) in net.edges:  # the step has left the instance there, and completes it
            net.edges.append((start, end, is_dashed, "", mark))
            continue
        if len(said) > len(net.labels.get(between, ())):
            net.labels[between] = said
        net.marks[between] = net.marks.get(between) or mark
        for part in ((start, between, False, "", mark), (between, end, is_dashed, "", mark)):
            if part not in net.edges:
                net.edges.append(part)
    return net


def _layers(net: _Net) -> dict[Place, int]:
    """Return the layer of each box: below all that lead to it, but for those that would close a circle."""
    after: dict[Place, list[Place]] = {node: [] for node in net.labels}
    for start, end, *_ in net.edges:
        after[start].append(end)
    order, state = list[Place](), dict[Place, int]()
    back = set[tuple[Place, Place]]()
    roots = sorted(net.labels, key=lambda node: node[0] not in ("start", "event"))
    for root in roots:
        stack = [(root, iter(after[root]))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            node, rest = stack[-1]
            found = next(rest, None)
            if found is None:
                stack.pop()
                state[node] = 2
                order.append(node)
            elif state.get(found) == 1:
                back.add((node, found))
            elif found not in state:
                state[found] = 1
                stack.append((found, iter(after[found])))
    layers = dict.fromkeys(net.labels, 0)
    for node in reversed(order):
        for end in after[node]:
            if (node, end) not in back:
                layers[end] = max(layers[end], layers[node] + 1)
    return layers


def _chains(net: _Net, layers: dict[Place, int]) -> list[list[Place]]:
    """Return the boxes and points by which each connection goes; adds the points to the layers."""
    chains = list[list[Place]]()
    for number, (start, end, *_) in enumerate(net.edges):
        points: list[Place] = [("point", f"{number} {layer}") for layer in range(layers[start] + 1, layers[end])]
        layers.update({point: layers[start] + 1 + step for step, point in enumerate(points)})
        chains.append([start, *points, end])
    return chains


def _rows(net: _Net, layers: Mapping[Place, int], chains: Iterable[Sequence[Place]]) -> list[list[Place]]:
    """Return the boxes and points of each layer, those near each other that belong together."""
    rows: list[list[Place]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for node, layer in layers.items():
        rows[layer].append(node)
    near: dict[Place, list[Place]] = {node: [] for node in layers}
    for chain in chains:
        for one, other in pairwise(chain):
            near[one].append(other)
            near[other].append(one)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            places = {node: place / max(len(each) - 1, 1) for each in rows for place, node in enumerate(each)}
            row.sort(key=lambda node: _middle(places, near[node], places[node]))
    return rows


def _middle(places: Mapping[Place, float], near: Sequence[Place], otherwise: float) -> float:
    return sum(places[node] for node in near) / len(near) if near else otherwise


def _placed(net: _Net, rows: Sequence[Sequence[Place]]) -> dict[Place, Box]:
    sized = [[_sized(net, node) for node in row] for row in rows]
    widths = [sum(box.width for box in row) + _GAP * (len(row) - 1) for row in sized]
    widest, y, boxes = max(widths, default=0), float(_MARGIN), dict[Place, Box]()
    for row, line, width in zip(rows, sized, widths, strict=True):
        height, x = max(box.height for box in line), _MARGIN + (widest - width) / 2
        for node, box in zip(row, line, strict=True):
            boxes[node] = box._replace(x=x, y=y + (height - box.height) / 2)
            x += box.width + _GAP
        y += height + _LAYER_GAP
    return boxes


def _sized(net: _Net, node: Place) -> Box:
    shape, whole = node[0], [each for each in net.labels.get(node, ()) if each]
    if shape in ("start", "end") or shape == "point":
        size = 1 if shape == "point" else _DOT
        return Box(shape, net.marks.get(node, ""), 0, 0, size, size, (), shape)
    lines = [each if len(each) <= _CHARACTERS else f"{each[: _CHARACTERS - 1]}…" for each in whole]
    width = max(48.0, max(map(len, lines), default=0) * _CHARACTER + 2 * _PADDING)
    return Box(shape, net.marks.get(node, ""), 0, 0, width, len(lines) * _LINE + 2 * _PADDING - 4, lines, "\n".join(whole))


def _line(boxes: Mapping[Place, Box], chain: Sequence[Place], edge: tuple[Place, Place, bool, str, str]) -> Line:
    start, end = boxes[chain[0]], boxes[chain[-1]]
    _, _, is_dashed, label, mark = edge
    if end.y <= start.y:
        return _back(start, end, is_dashed, label, mark)
    points = [(start.x + start.width / 2, start.y + start.height)]
    points += [(boxes[node].x, boxes[node].y) for node in chain[1:-1]]
    points.append((end.x + end.width / 2, end.y))
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2
        path += f" C{x1:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}"
    (x1, y1), (x2, y2) = points[0], points[1]
    return Line(path, mark, is_dashed, label, (x1 + x2) / 2, (y1 + y2) / 2 + 4)


def _back(start: Box, end: Box, is_dashed: bool, label: str, mark: str) -> Line:
    """Return a line upwards, or to the same box, around the right sides of both."""
    x1, y1 = start.x + start.width, start.y + start.height / 2
    x2, y2 = end.x + end.width, end.y + end.height / 2
    y1, y2 = (y1 + 5, y2 - 5) if start == end else (y1, y2)
    side = max(x1, x2) + _GAP * 1.5
    path = f"M{x1:.1f},{y1:.1f} C{side:.1f},{y1:.1f} {side:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
    return Line(path, mark, is_dashed, label, side - 12, (y1 + y2) / 2 + 4)
