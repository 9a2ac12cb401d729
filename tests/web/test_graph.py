"""Pictures of sagas: boxes in layers."""

from itertools import combinations
from typing import Any

import pytest

from celery_sagas.core.graph.drawing import Drawing, drawing_of
from celery_sagas.core.graph.marks import Mark
from celery_sagas.operate.graphs import registered_graph
from celery_sagas.web.graph import MOST, Box, Picture, picture_of
from tests.apps import definitions
from tests.web.shops import define

__all__ = ["definitions"]


@pytest.fixture
def shop(definitions: None) -> Any:
    return define()


def overlaps(one: Box, other: Box) -> bool:
    across = one.x < other.x + other.width and other.x < one.x + one.width
    return across and one.y < other.y + other.height and other.y < one.y + one.height


def is_inside(box: Box, picture: Picture) -> bool:
    return 0 <= box.x <= box.x + box.width <= picture.width and 0 <= box.y <= box.y + box.height <= picture.height


@pytest.mark.parametrize("name", ["Order", "Cart"])
def test_boxes_do_not_overlap(shop: Any, name: str) -> None:
    picture = picture_of(drawing_of(registered_graph(getattr(shop, name).__saga__)))

    assert picture.boxes
    assert picture.lines
    assert not [pair for pair in combinations(picture.boxes, 2) if overlaps(*pair)]
    assert all(is_inside(box, picture) for box in picture.boxes)


def test_the_way_is_marked(shop: Any) -> None:
    graph = registered_graph(shop.Order.__saga__)
    picture = picture_of(drawing_of(graph, {"place": Mark.TAKEN, "charged": Mark.AWAITED}))
    marks = {box.lines[0]: box.mark for box in picture.boxes if box.lines and box.mark}

    assert marks == {"✓ place": "taken", "… charged": "awaited"}
    assert {line.mark for line in picture.lines} == {"taken", "awaited", ""}
    assert picture.legend


def test_what_follows_stands_below() -> None:
    """Also where a way leads back, and where one leads over a layer."""
    drawing = Drawing("x")
    a, b, c, d = (drawing.node("step", each, each) for each in "abcd")
    for start, end in ((a, b), (b, c), (c, d), (a, d), (d, b), (c, c)):
        drawing.connect(start, end)
    picture = picture_of(drawing)
    y = {box.lines[0]: box.y for box in picture.boxes}

    assert y["a"] < y["b"] < y["c"] < y["d"]
    assert len(picture.lines) == 6


def test_long_labels_are_cut() -> None:
    drawing = Drawing("x")
    drawing.node("step", "long", "y" * 500)
    (box,) = picture_of(drawing).boxes
    assert box.width < 300


def test_nothing_is_drawn_of_too_much() -> None:
    drawing = Drawing("x")
    for number in range(MOST + 1):
        drawing.node("step", str(number), str(number))
    assert picture_of(drawing).boxes == ()
    assert picture_of(Drawing("empty")).boxes == []
