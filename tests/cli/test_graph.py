"""``celery sagas describe --graph``, and what ``describe`` says of statuses."""

from datetime import timedelta
from typing import Any, Literal

import pytest
from celery import Celery, chain, shared_task, signature

from celery_sagas import Failure, Message, Saga, publish
from tests.cli.test_describe import run
from tests.core.graph.formats import read_dot, read_mermaid

HOUR = timedelta(hours=1)


class Delivered(Message):
    """An event."""

    order_id: str


@shared_task
def charge(order_id: str) -> str:
    """Charge a card."""
    return order_id


@pytest.fixture
def shop(app: Celery) -> Any:
    """A saga with a status and one without, whose steps send tasks of both kinds, by all that Celery has to name them."""

    @app.task(name="bank.refund")
    def refund(order_id: str) -> None: ...

    give_back = refund.si("1")

    class Order(Saga, correlate_by="order_id", status_by="status"):
        order_id: str
        status: Literal["placed", "paid", "refunded", "lost"] = "placed"

    @Order.starts(if_exists="ignore")
    def place(order: Order, order_id: str) -> None:
        order.send(charge.s(order_id), then=pay, otherwise=fail, within=HOUR, undo=refund.si(order_id))

    @Order.handles(when="placed", to="paid", if_not="defer", defer_for=HOUR)
    def pay(order: Order, receipt: str) -> None:
        order.send(chain(signature("shop.pack"), refund.si("1")))
        order.send(charge.si("2") | refund.si("2"))
        order.schedule(end.s(), after=HOUR)

    @Order.handles(when=lambda order, failure: failure.text == "declined", if_not="ignore")
    def fail(order: Order, failure: Failure) -> None:
        order.send(give_back)
        order.compensate(then="end")

    @Order.handles(when={"paid", "refunded"}, to="lost")
    def end(order: Order) -> None:
        publish(Delivered(order_id=order.order_id))

    class Till(Saga, correlate_by="order_id"):
        order_id: str

    @Till.starts
    def count(till: Till, event: Delivered) -> None:
        till.complete()


def test_what_is_said_of_statuses(app: Celery, shop: Any) -> None:
    """Of a saga which it has; of a step when it runs, what becomes of other messages, and where it leads."""
    lines = [line.strip() for line in run(app, "describe", "order").output.splitlines()]

    for line in (
        "status_by: status (placed, paid, refunded, lost)",
        "when: placed",
        "if_not: defer",
        "to: paid",
        "defer_for: 1:00:00",
        "when: tests.cli.test_graph.shop.<locals>.<lambda>()",
        "if_not: ignore",
        "when: paid or refunded",
        "if_not: raise",
    ):
        assert line in lines


def test_mermaid(app: Celery, shop: Any) -> None:
    """Tasks are known by their names, however they are named."""
    result = run(app, "describe", "order", "--graph", "mermaid")

    assert result.exit_code == 0, result.output
    labels = {label for *_, label, _ in read_mermaid(result.stdout.rstrip("\n")).edges}
    assert labels == {
        "place\nsends charge, undo refund",
        "pay\non the answer of charge\nsends pack | refund\nsends charge | refund",
        "fail, if failure.text == 'declined'\non the failure of charge\nsends refund\nundoes what was done",
        "end\nafter HOUR\nonce all is undone\npublishes Delivered",
        "end",
    }


def test_warnings(app: Celery, shop: Any) -> None:
    """They go to where errors go, so that the graph can be written to a file; they are no failure."""
    result = run(app, "describe", "--graph", "dot")

    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        "Warning: order: nothing leads to the status 'refunded'. "
        "Name it in to= of the step that leads there, or remove it from Order.",
        "Warning: order: end never runs when it is 'refunded', since nothing leads to the status 'refunded'. "
        "Name it in to= of the step that leads there, or remove it from when=.",
        "Warning: order: nothing leaves the status 'lost', and nothing completes the instance there. "
        "Let a step lead on from there, or complete() the instance.",
    ]
    assert "Warning" not in result.stdout


def test_no_warnings_without_a_graph(app: Celery, shop: Any) -> None:
    """Only the graph asks for them."""
    assert run(app, "describe").stderr == ""


def test_all_sagas(app: Celery, shop: Any) -> None:
    """One graph for each, with an empty line between them."""
    first, second = run(app, "describe", "--graph", "dot").stdout.rstrip("\n").split("\n\n")

    assert first.startswith('digraph "order" {')
    assert second.startswith('digraph "till" {')
    assert [read_dot(each).edges != [] for each in (first, second)] == [True, True]


def test_text(app: Celery, shop: Any) -> None:
    """A list, with tasks under their whole names."""
    result = run(app, "describe", "till", "order", "--graph", "text")

    assert "    sends tests.cli.test_graph.charge, undo bank.refund\n" in result.stdout
    assert "    sends shop.pack | bank.refund\n" in result.stdout
    assert result.stdout.endswith(
        "till\n\n  count\n    starts an instance\n    on the event Delivered\n    completes the instance\n"
    )


def test_unknown_saga(app: Celery, shop: Any) -> None:
    """It says what there is."""
    result = run(app, "describe", "oder", "--graph", "text")

    assert result.exit_code == 1
    assert "unknown saga oder; known: order, till" in result.output


def test_unknown_format(app: Celery, shop: Any) -> None:
    """It says which there are."""
    result = run(app, "describe", "--graph", "svg")

    assert result.exit_code == 2
    assert "'mermaid', 'dot', 'text'" in result.output


def test_no_saga(app: Celery) -> None:
    """Perhaps a module is not imported."""
    assert "No sagas are defined" in run(app, "describe", "--graph", "text").output


def test_wrong_definition_is_shown_without_a_traceback(app: Celery) -> None:
    """A command's reader wants the sentence."""

    class Order(Saga, correlate_by="order_id", status_by="status"):
        order_id: str
        status: str = "placed"

    result = run(app, "describe", "--graph", "text")

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "status_by='status' is annotated str" in result.output
