"""What is drawn of a saga, in each format."""

from datetime import timedelta
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sagas.core.graph.drawing import COLOURS, LINES, SHAPES, Drawing, bounded, dot, drawing_of, mermaid, text
from celery_sagas.core.graph.marks import Mark, Marks, awaited_steps, marks_of
from celery_sagas.core.graph.model import SagaGraph
from celery_sagas.core.graph.names import LINE, shortened
from celery_sagas.core.pending import Pending
from celery_sagas.core.requests.answers import Failure, Gathered
from celery_sagas.core.requests.requests import Request, Target
from celery_sagas.core.requests.undo import Undo, Undoing
from celery_sagas.core.state import State
from celery_sagas.core.timeouts import Timeout
from tests.core.graph.formats import Read, read_dot, read_mermaid
from tests.core.graph.sagas import Delivered, Plain, Task, graph, publish, starter, step

charge, refund, quote, ship, tell = (Task(f"shop.{name}") for name in ("charge", "refund", "quote", "ship", "tell"))
HOUR = timedelta(hours=1)


def place(order: Any, order_id: str) -> None:
    order.send(charge.s(), then="charged", otherwise="not_charged", within=HOUR, undo=refund.si())


def charged(order: Any, receipt: str) -> None:
    order.gather([quote.s(), ship.s()], then="quoted", otherwise="not_charged", within=HOUR)


def quoted(order: Any, prices: Gathered[int]) -> None:
    order.send(tell.s(), after=5)
    order.schedule("remind", after=HOUR)


def not_charged(order: Any, failure: Failure) -> None:
    order.compensate(then="given_back")


def remind(order: Any) -> None:
    order.send(tell.s())
    order.reply()


def given_back(order: Any) -> None:
    order.complete()


def delivered(order: Any, event: Delivered) -> None:
    publish(event)
    order.complete()


def drawn(found: SagaGraph, marks: Marks | None = None) -> Read:
    """Return what is drawn of a graph, by its labels; both formats draw the same."""
    drawing = drawing_of(found, marks)
    read, other = read_mermaid(mermaid(drawing)), read_dot(dot(drawing))
    assert [other.edges, {id: label or " " for id, label in other.nodes.items()}] == [read.edges, read.nodes]
    assert other.colours == read.colours
    return read


def edges(found: SagaGraph) -> list[str]:
    """Return the edges of a drawing, each in one line."""
    read, drawing = drawn(found), drawing_of(found)
    names = {f"n{number}": (label or [shape])[0] for number, ((shape, _), label) in enumerate(drawing.nodes.items(), 1)}
    shown = ((names[start], "-.->" if dashed else "-->", names[end], label) for start, end, label, dashed in read.edges)
    return [
        " ".join([start, arrow, end]) + (": " + label.replace("\n", " / ") if label else "") for start, arrow, end, label in shown
    ]


# ---- a saga without a status


def steps_of(saga: Any) -> SagaGraph:
    """Return the graph of a small shop."""
    functions = [charged, quoted, not_charged, remind, given_back, delivered]
    by = {"delivered": "event.order_id"}
    steps = [step(each, saga=saga, by=by.get(each.__name__)) for each in functions]
    return graph(starter(place, saga=saga), *steps)


def test_steps_and_what_they_send() -> None:
    assert edges(steps_of(Plain)) == [
        "start --> place",
        "place --> charge: sends",
        "charge --> charged: answer",
        "charge --> not_charged: failure / or no answer within HOUR",
        "charged --> quote, ship: gathers",
        "quote, ship --> quoted: outcomes",
        "quote, ship --> not_charged: too few answers / within HOUR",
        "quoted --> tell: sends after 5",
        "quoted --> remind: after HOUR",
        "not_charged --> given_back: once all is undone",
        "remind --> tell: sends",
        "given_back --> end",
        "Delivered --> delivered",
        "delivered --> event: publishes",
        "delivered --> end",
    ]


def test_what_is_said_of_nodes() -> None:
    labels = set(drawn(steps_of(Plain)).nodes.values())
    assert labels >= {"place", "charge\nundo refund", "not_charged\nundoes what was done", "remind\nreplies", "quote, ship"}


second_step, other_step, old_step = Task("plain.second"), Task("invoice.file"), Task("plain.earlier")


def test_a_step_that_sends_to_others() -> None:
    """To one of its saga, by a former name too, and to one of another saga, which is a task like any other."""

    def first(order: Any, order_id: str) -> None:
        order.send(second_step.s(), after=3)
        order.send(old_step.s())
        order.send(other_step.s(), then=second_step)

    def second(order: Any) -> None: ...

    found = graph(starter(first, saga=Plain), step(second, saga=Plain, formerly="plain.earlier"))
    assert edges(found) == [
        "start --> first",
        "first --> file: sends",
        "file --> second: answer",
        "first --> second: sent after 3",
        "first --> second: sent",
    ]


def test_what_is_not_known() -> None:
    """An outcome that goes to what cannot be told is drawn; tasks whose names end alike are told apart."""
    one, other = Task("one.charge"), Task("other.charge")

    def first(order: Any, order_id: str, to: Any) -> None:
        order.send(one.s() | ship.s(), then=to.next)
        order.send(other.s())

    assert edges(graph(starter(first, saga=Plain))) == [
        "start --> first",
        "first --> one.charge | ship: sends",
        "one.charge | ship --> to.next: answer",
        "first --> other.charge: sends",
    ]


def test_a_step_without_source() -> None:
    """It is drawn from its declaration, with a note."""
    space: dict[str, Any] = {"__name__": "typed"}
    exec("def place(order, order_id): order.complete()", space)
    found = graph(starter(space["place"], saga=Plain))

    assert edges(found) == ["start --> place"]
    assert "place\nits source is not available" in drawn(found).nodes.values()
    assert "    note: its source is not available" in text(found).split("\n")


# ---- a saga with a status


def test_statuses_and_the_steps_between_them() -> None:
    found = graph(
        starter(place, to="placed"),
        step(charged, when="placed", to="paid"),
        step(quoted, when="paid"),
        step(not_charged, when=["placed", "paid"], to="cancelled"),
        step(remind, when="paid", to=["shipped", "cancelled"]),
        step(given_back, when="cancelled"),
        step(delivered, by="event.order_id", when="shipped", to="cancelled"),
    )
    assert edges(found) == [
        "start --> placed: place / sends charge, undo refund",
        "placed --> paid: charged / on the answer of charge / gathers quote, ship",
        "paid -.-> paid: quoted / on the outcomes of quote, ship / sends tell after 5",
        "placed --> cancelled: not_charged / on the failure of charge / on too few answers of quote, ship / undoes what was done",
        "paid --> cancelled: not_charged",
        "paid --> shipped: remind / after HOUR / sends tell / replies",
        "paid --> cancelled: remind",
        "cancelled --> end: given_back / once all is undone",
        "shipped --> cancelled: delivered / on Delivered / publishes event",
        "cancelled --> end: delivered",
    ]


def test_what_is_not_declared_is_dashed() -> None:
    def first(order: Any, order_id: str) -> None: ...

    def pay(order: Any) -> None:
        order.status = "paid" if order.patience else "cancelled"

    def look(order: Any) -> None: ...

    def look_again(order: Any) -> None: ...

    def change(order: Any, status: Any) -> None:
        order.status = status

    found = graph(*map(starter, [first]), *map(step, [pay, look, look_again, change]))
    assert edges(found) == [
        "start -.-> placed: first",
        "any status -.-> paid: pay",
        "any status -.-> cancelled: pay",
        "any status -.-> any status: look / look_again",
        "any status -.-> another status: change / it sets a status that is not known: status",
    ]


def test_a_condition() -> None:
    def is_paid(order: Any) -> bool:
        return order.patience > 0

    def one(order: Any) -> None: ...

    def other(order: Any) -> None: ...

    found = graph(step(one, when=is_paid, to="paid"), step(other, when=lambda order: order.patience > 0, to="paid"))
    assert edges(found) == [
        "any status --> paid: one, if is_paid()",
        "any status --> paid: other, if order.patience > 0",
    ]


def test_a_starter_that_runs_on_existing_instances() -> None:
    assert edges(graph(starter(place, policy="handle", to="placed"))) == [
        "start --> placed: place / sends charge, undo refund / answer: charged / failure: not_charged",
        "any status --> placed: place",
    ]


class Unset(State, correlate_by="order_id", status_by="status"):
    """A saga whose first status is not known."""

    order_id: str
    status: Literal["end", "graph"]


def test_a_first_status_that_is_not_known() -> None:
    def begin(order: Any, order_id: str) -> None: ...

    assert edges(graph(starter(begin, saga=Unset))) == ["start -.-> another status: begin"]


# ---- what an instance has done, and waits for

MARKS: Marks = {"place": Mark.TAKEN, "charged": Mark.AGAIN, "not_charged": Mark.AWAITED}


def test_marked_nodes() -> None:
    read = drawn(steps_of(Plain), MARKS)
    marked = {read.nodes[id].split("\n")[0]: colour for id, colour in read.colours.items()}
    assert marked == {
        "✓ place": COLOURS[Mark.TAKEN][1],
        "↻ charged": COLOURS[Mark.AGAIN][1],
        "… not_charged": COLOURS[Mark.AWAITED][1],
    }
    assert "remind\nreplies" in read.nodes.values()
    assert list(read.nodes.values())[-1] == "✓ taken\n… awaited\n↻ taken, and awaited again"


def test_marked_edges() -> None:
    """One that stays where it is has an edge of its own then."""

    def look(order: Any) -> None: ...

    def look_again(order: Any) -> None: ...

    found = graph(
        starter(place, to="placed"),
        step(charged, when="placed", to="paid"),
        step(not_charged, when=["placed", "paid"], to="cancelled"),
        step(look),
        step(look_again),
        step(delivered, by="event.order_id", to="shipped"),
    )
    read = drawn(found, {**MARKS, "look_again": Mark.TAKEN, "delivered": Mark.TAKEN})
    shown = [(label.split("\n")[0], read.colours.get(str(number))) for number, (*_, label, _) in enumerate(read.edges)]
    taken, awaited, again = (COLOURS[mark][1] for mark in (Mark.TAKEN, Mark.AWAITED, Mark.AGAIN))
    assert shown == [
        ("✓ place", taken),
        ("↻ charged", again),
        ("… not_charged", awaited),
        ("… not_charged", awaited),
        ("look", None),
        ("✓ look_again", taken),
        ("✓ delivered", taken),
        ("✓ delivered", taken),
    ]


def test_marks_of_none() -> None:
    """There is a legend all the same, so that it is seen that nothing is marked."""
    read = drawn(steps_of(Plain), {})
    assert read.colours == {}
    assert len(read.nodes) == len(drawn(steps_of(Plain)).nodes) + 1
    assert text(steps_of(Plain), {}) == text(steps_of(Plain)) + "\n\n✓ taken   … awaited   ↻ taken, and awaited again"


def test_marked_list() -> None:
    lines = text(steps_of(Plain), MARKS).split("\n")
    assert {line for line in lines if line[:1] not in (" ", "")} == {
        "plain",
        "✓ place",
        "↻ charged",
        "… not_charged",
        "✓ taken   … awaited   ↻ taken, and awaited again",
    }
    assert "  remind" in lines
    assert [line[2:] for line in lines[1:-2]] == [line[2:] for line in text(steps_of(Plain)).split("\n")[1:]]


@pytest.mark.parametrize(
    ("taken", "awaited", "marks"),
    [
        ([], [], {}),
        (["plain.first"], [], {"first": Mark.TAKEN}),
        ([], ["plain.first", "plain.second"], {"first": Mark.AWAITED, "second": Mark.AWAITED}),
        (["plain.first", "plain.first"], ["plain.first"], {"first": Mark.AGAIN}),
        (["plain.earlier"], ["plain.earlier"], {"second": Mark.AGAIN}),
        (["plain.gone", "plain.(answered)", "", "first\n"], ["other.first"], {}),
    ],
)
def test_marks_by_the_names_of_steps(taken: list[str], awaited: list[str], marks: Marks) -> None:
    """Also by former ones, and not by those of others."""

    def first(plain: Any, order_id: str) -> None: ...

    def second(plain: Any) -> None: ...

    found = graph(starter(first, saga=Plain), step(second, saga=Plain, formerly="plain.earlier"))
    assert marks_of(found, taken, awaited) == marks


def test_what_an_instance_waits_for() -> None:
    open_requests = [
        Request("1", "charge", "order.paid", "order.refused", progress="order.seen"),
        Request("2", "quote", "order.(answered)", members=3, at_least=2),
    ]
    closed = [
        Request("3", "charge", "order.late", has_timed_out=True),
        Request("4", "charge", "order.undone", is_undone=True),
        Request("5", "refund", "order.(undone)", undoes="4"),
    ]
    pending = Pending(
        timeouts={"soon": Timeout("t", "row", "order.remind", 1)},
        requests={request.id: request for request in (*open_requests, *closed)},
        undo=Undo([], Undoing([], Target("order.given_back"))),
    )
    assert list(awaited_steps(pending)) == [
        "order.remind",
        "order.paid",
        "order.refused",
        "order.seen",
        "order.(answered)",
        "order.given_back",
    ]
    assert list(awaited_steps(Pending(undo=Undo([], Undoing([]))))) == []


# ---- labels


def labelled(*lines: str) -> Drawing:
    """Return a drawing with these lines in every place where there may be some."""
    drawing = Drawing("order")
    first, second, *_ = [drawing.node(shape, "", *lines) for shape in SHAPES]
    drawing.connect(first, second, *lines)
    drawing.connect(second, first, *lines, is_dashed=True)
    return drawing


@given(st.lists(st.text(), max_size=LINES + 2))
def test_no_text_breaks_out_of_its_label(lines: list[str]) -> None:
    drawing = labelled(*lines)
    expected = "\n".join(bounded(drawing.nodes["step", ""]))
    for read in (read_mermaid(mermaid(drawing)), read_dot(dot(drawing))):
        assert {label.strip(" ") for label in read.nodes.values()} == {expected.strip(" ")}
        assert [(start, end, dashed) for start, end, _, dashed in read.edges] == [("n1", "n2", False), ("n2", "n1", True)]
        assert {label for *_, label, _ in read.edges} == {expected}


@pytest.mark.parametrize(
    "text",
    [
        "end",
        "graph",
        "subgraph",
        'a"]; n1 --> n2',
        "`**bold**`",
        "%% no comment",
        "%%{init: {}}%%",
        "1. no list",
        "- no list",
        "<script>alert(1)</script>",
        "&quot; #quot;",
        "|pipe|",
        "_emphasis_",
        r"\N \G \l",
        "fa:fa-car",
        "naïve → 出荷 🚚",
        "style a:b#35;",
    ],
)
def test_text_that_means_something_to_a_format_is_shown_as_it_is(text: str) -> None:
    drawing = labelled(text)
    assert set(read_mermaid(mermaid(drawing)).nodes.values()) == {text}
    assert set(read_dot(dot(drawing)).nodes.values()) == {text}


def test_a_status_may_be_any_text() -> None:
    class Odd(State, correlate_by="order_id", status_by="status"):
        order_id: str
        status: Literal["end", 'a "b"] --> c', "\u202e\x1b[31m"] = "end"

    def go(order: Any) -> None: ...

    found = graph(step(go, saga=Odd, when="end", to='a "b"] --> c'))
    assert list(drawn(found).nodes.values()) == ["end", 'a "b"] --> c', r"\u202e\x1b[31m"]
    assert r"\u202e\x1b[31m" in text(found)
    assert "\u202e" not in text(found)


def test_long_labels_are_shortened() -> None:
    drawing = labelled(*(f"{number} " * 100 for number in range(100)))
    lines = bounded(drawing.nodes["step", ""])
    assert (len(lines), max(map(len, lines)), lines[-1]) == (LINES, LINE, f"and {100 - LINES + 1} more")
    assert shortened("a" * LINE) == "a" * LINE


# ---- text


def test_a_list() -> None:
    assert (
        text(steps_of(Plain))
        == """\
plain

  place
    starts an instance
    sends shop.charge, undo shop.refund
      answer: charged
      failure, or no answer within HOUR: not_charged

  charged
    on the answer of shop.charge, sent by place
    gathers shop.quote, shop.ship
      outcomes: quoted
      too few answers within HOUR: not_charged

  quoted
    on the outcomes of shop.quote, shop.ship, sent by charged
    sends shop.tell after 5
    after HOUR: remind

  not_charged
    on the failure of shop.charge, or no answer within HOUR, sent by place
    on too few answers of shop.quote, shop.ship within HOUR, sent by charged
    once all is undone: given_back
    undoes what was done

  remind
    after HOUR, by quoted
    sends shop.tell
    replies

  given_back
    once all is undone, by not_charged
    completes the instance

  delivered
    on the event Delivered
    publishes event
    completes the instance"""
    )


def test_a_list_with_statuses() -> None:
    def pay(order: Any) -> None:
        order.status = "paid"

    found = graph(
        starter(place, policy="handle", when="placed", to="placed"),
        step(pay, when=["placed", "shipped"]),
        step(remind, when=lambda order: order.patience, to=["shipped", "cancelled"]),
        step(given_back, when="cancelled"),
        step(quoted),
    )
    shown = [line.strip() for line in text(found).split("\n")]
    assert [line for line in shown if "→" in line or line.startswith(("statuses", "if"))] == [
        "statuses: placed (the default), paid, shipped, cancelled",
        "start or placed → placed",
        "placed or shipped → (paid)",
        "if order.patience",
        "any status → shipped or cancelled",
        "cancelled → the end",
        "any status → the same",
    ]
