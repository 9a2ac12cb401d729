"""``celery sagas graph``, and what ``describe`` says of statuses."""

import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from celery import Celery, chain, shared_task, signature
from click.testing import Result

from celery_sagas import Failure, Message, Saga, publish
from celery_sagas.stores.records import Change
from celery_sagas.testing.samples import by_key, effects, entry, found
from tests.apps import NewApp, backend_of
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
    result = run(app, "graph", "order", "--format", "mermaid")

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
    result = run(app, "graph", "--format", "dot")

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
    first, second = run(app, "graph", "--format", "dot").stdout.rstrip("\n").split("\n\n")

    assert first.startswith('digraph "order" {')
    assert second.startswith('digraph "till" {')
    assert [read_dot(each).edges != [] for each in (first, second)] == [True, True]


def test_text(app: Celery, shop: Any) -> None:
    """A list, with tasks under their whole names."""
    result = run(app, "graph", "order", "Till")

    assert "    sends tests.cli.test_graph.charge, undo bank.refund\n" in result.stdout
    assert "    sends shop.pack | bank.refund\n" in result.stdout
    assert result.stdout.endswith(
        "till\n\n  count\n    starts an instance\n    on the event Delivered\n    completes the instance\n"
    )


def test_unknown_saga(app: Celery, shop: Any) -> None:
    """It says what there is."""
    result = run(app, "graph", "oder")

    assert result.exit_code == 1
    assert "unknown saga oder; known: order, till" in result.output


def test_json(app: Celery, shop: Any) -> None:
    """The nodes and edges of the other formats."""
    order, till = map(json.loads, run(app, "graph", "--format", "json").stdout.splitlines())
    drawn = read_dot(run(app, "graph", "order", "--format", "dot").stdout.rstrip("\n"))
    assert (order["saga"], till["saga"]) == ("order", "till")
    assert (len(order["nodes"]), len(order["edges"])) == (len(drawn.nodes), len(drawn.edges))
    assert {each[end] for each in order["edges"] for end in ("from", "to")} <= set(range(len(order["nodes"])))
    assert "paid" in {line for node in order["nodes"] for line in node["label"]}
    assert "on the answer of charge" in {line for edge in order["edges"] for line in edge["label"]}


def test_unknown_format(app: Celery, shop: Any) -> None:
    """It says which there are."""
    result = run(app, "graph", "--format", "svg")

    assert result.exit_code == 2
    assert "'mermaid', 'dot', 'text'" in result.output


def test_no_saga(app: Celery) -> None:
    """Perhaps a module is not imported."""
    assert "No sagas are defined" in run(app, "graph").output


def test_wrong_definition_is_shown_without_a_traceback(app: Celery) -> None:
    """A command's reader wants the sentence."""

    class Order(Saga, correlate_by="order_id", status_by="status"):
        order_id: str
        status: str = "placed"

    result = run(app, "graph")

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert "status_by='status' is annotated str" in result.output


@pytest.mark.parametrize("form", ["mermaid", "dot", "text"])
def test_describe_draws_the_same(app: Celery, shop: Any, form: str) -> None:
    drawn, described = run(app, "graph", "--format", form), run(app, "describe", "--graph", form)
    assert (drawn.stdout, drawn.stderr) == (described.stdout, described.stderr)


def test_no_backend_is_opened(new_app: NewApp) -> None:
    """One that is away, or does not exist, is not needed."""
    app = new_app()
    app.conf.saga_backend = "nothing://"
    assert run(app, "graph").exit_code == 0
    assert run(app, "graph", "order", "--of", "1").exit_code == 1


class TestOfAnInstance:
    """``--of`` marks what the newest instance with a key has done, and what it waits for."""

    @pytest.fixture
    def steps(self, app: Celery) -> Any:
        """Steps of a saga with all that an instance may wait for."""

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts(if_exists="ignore")
        def place(order: Order, order_id: str) -> None:
            order.send(charge.s(order_id), then=pay, otherwise=fail)
            order.schedule(remind, after=3_600, name="first")

        @Order.handles
        def pay(order: Order, receipt: str) -> None: ...

        @Order.handles
        def fail(order: Order, failure: Failure) -> None: ...

        @Order.handles(by={"order_id": "order_id"})
        def remind(order: Order, order_id: str = "") -> None: ...

        @Order.handles
        def end(order: Order, order_id: str) -> None:
            order.complete()

        @Order.handles
        def cancel(order: Order, order_id: str) -> None: ...

        return SimpleNamespace(place=place, remind=remind, end=end, cancel=cancel)

    def _marked(self, result: Result) -> dict[str, str]:
        """Return the signs of steps."""
        assert result.exit_code == 0, result.output
        steps = [line.split(" ") for line in result.stdout.splitlines()[1:-1] if line and not line.startswith("  ")]
        return {step: sign for sign, step in steps}

    def test_live_one(self, app: Celery, steps: Any) -> None:
        steps.place("1")
        result = run(app, "graph", "order", "--of", "1")
        assert self._marked(result) == {"place": "✓", "pay": "…", "fail": "…", "remind": "…"}
        assert result.stdout.splitlines()[-1] == "✓ taken   … awaited   ↻ taken, and awaited again"
        steps.remind("1")
        assert self._marked(run(app, "graph", "Order", "--of", "1"))["remind"] == "↻"

    @pytest.mark.parametrize(("form", "read"), [("mermaid", read_mermaid), ("dot", read_dot)])
    def test_drawn(self, app: Celery, steps: Any, form: str, read: Any) -> None:
        steps.place("1")
        found = read(run(app, "graph", "order", "--of", "1", "--format", form).stdout.rstrip("\n"))
        assert {found.nodes[id] for id in found.colours} == {"✓ place", "… pay", "… fail", "… remind"}

    def test_one_that_has_ended(self, app: Celery, steps: Any) -> None:
        steps.place("1")
        steps.end("1")
        assert self._marked(run(app, "graph", "order", "--of", "1")) == {"place": "✓", "end": "✓"}

    def test_lives_of_one_key_are_not_mixed(self, app: Celery, steps: Any) -> None:
        steps.place("1")
        steps.end("1")
        steps.place("1")
        assert "end" not in self._marked(run(app, "graph", "order", "--of", "1"))

    def test_messages_that_changed_nothing(self, app: Celery, steps: Any) -> None:
        """One that was ignored, or has failed, did not run its step."""
        steps.place("1")
        record = found(backend_of(app), by_key("1", ("order",)))
        for outcome in ("failed", "ignored", "deferred", "undone", "retried"):
            line = entry(record, step="order.cancel", outcome=outcome, version=1)
            backend_of(app).sagas.record(effects(line=line))
        assert "cancel" not in self._marked(run(app, "graph", "order", "--of", "1"))

    def test_instance_that_the_journal_has_forgotten(self, app: Celery, steps: Any) -> None:
        """It is known what it waits for."""
        steps.place("1")
        backend_of(app).journal.purge(-1_000, 9)
        assert self._marked(run(app, "graph", "order", "--of", "1")) == {"pay": "…", "fail": "…", "remind": "…"}

    @pytest.mark.parametrize(
        ("pending", "problem"), [('{"format": 99}', "newer code has written it"), ("{", "its pending map is damaged")]
    )
    def test_pending_map_that_cannot_be_read(self, app: Celery, steps: Any, pending: str, problem: str) -> None:
        steps.place("1")
        record = found(backend_of(app), by_key("1", ("order",)))
        backend_of(app).sagas.update(record, Change(("order",), 1, record.data, pending), effects(record))
        result = run(app, "graph", "order", "--of", "1")
        assert self._marked(result) == {"place": "✓"}
        assert result.stderr == f"Warning: what the instance waits for is not marked: {problem}\n"

    @pytest.mark.parametrize(
        ("arguments", "status", "problem"),
        [
            (("order", "--of", "2"), 1, "Error: there is no order 2, and the journal remembers none"),
            (("order", "--of", "\x1b7"), 1, r"Error: there is no order \x1b7, and the journal remembers none"),
            (("parcel", "--of", "1"), 1, "Error: unknown saga parcel; known: order"),
            (("--of", "1"), 2, "Error: name one saga with --of"),
            (("order", "order", "--of", "1"), 2, "Error: name one saga with --of"),
        ],
    )
    def test_wrong_arguments(self, app: Celery, steps: Any, arguments: tuple[str, ...], status: int, problem: str) -> None:
        steps.place("1")
        result = run(app, "graph", *arguments)
        assert result.exit_code == status
        assert problem in result.output
