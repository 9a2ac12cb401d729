"""``celery sagas describe``."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_sagas import Message, Missing, Saga
from celery_sagas.cli import sagas


class Paid(Message):
    """An event."""

    id: str


def run(app: Celery, *arguments: str) -> Result:
    """Run a command as ``celery -A app sagas …`` does."""
    return CliRunner().invoke(sagas, list(arguments), obj=SimpleNamespace(app=app))


@pytest.fixture
def shop(app: Celery) -> Any:
    """Two sagas."""

    class Order(Saga, correlate_by=("shop", "number"), also_by="tracking", formerly="purchase", schema_version=3, keep=90_000):
        shop: str
        number: int
        tracking: str | None = None

    @Order.starts(if_exists="ignore", formerly="shop.place")
    def place(order: Order, shop: str, number: int) -> None: ...

    @Order.handles(by={"tracking": "parcel.code"})
    def delivered(order: Order, parcel: dict[str, str]) -> None: ...

    @delivered.if_missing
    def unknown_parcel(missing: Missing, parcel: dict[str, str]) -> None: ...

    @Order.handles(if_missing="defer", defer_for=5)
    def nudge(order: Order) -> None: ...

    @Order.if_missing
    def nobody(missing: Missing) -> None: ...

    @Order.handles
    def look(order: Order) -> None: ...

    class Invoice(Saga, correlate_by="number", max_idle=172_800):
        number: str

    @Invoice.handles
    def paid(invoice: Invoice, event: Paid) -> None: ...


def test_everything(app: Celery, shop: Any) -> None:
    """Sagas, steps and correlation rules."""
    result = run(app, "describe")

    assert result.exit_code == 0, result.output
    lines = [line.strip() for line in result.output.splitlines()]
    for line in (
        "order",
        "formerly: purchase",
        "schema version: 3",
        "keeps: final states for 1 day, 1:00:00",
        "worth a look: idle for 2 days, 0:00:00",
        "key: shop + number",
        "alternate keys: tracking",
        "order.place",
        "kind: starts, if_exists: ignore",
        "message: shop, number",
        "found by: shop from argument shop, number from argument number",
        "formerly: shop.place",
        "order.delivered",
        "found by: tracking from parcel.code",
        "order.nudge",
        "kind: handles, if_missing: defer",
        "defer_for: 0:00:05",
        "message: no arguments",
        "found by: shop and number from the causation header",
        "invoice",
        "found by: number from event.id",
    ):
        assert line in lines
    assert "if_missing: tests.cli.test_describe.shop.<locals>.unknown_parcel()" in result.output
    own = "tests.cli.test_describe.shop.<locals>.nobody()"
    assert lines.count(f"if missing: {own}") == lines.count(f"kind: handles, if_missing: {own}") == 1


def test_json(app: Celery, shop: Any) -> None:
    """One object for each saga."""
    order, invoice = map(json.loads, run(app, "describe", "--json").output.splitlines())

    place, delivered, nudge, look = order.pop("steps")
    where = "tests.cli.test_describe.shop.<locals>"
    assert order == {
        "saga": "order",
        "state": f"{where}.Order",
        "formerly": ["purchase"],
        "schema_version": 3,
        "correlate_by": ["shop", "number"],
        "also_by": ["tracking"],
        "search_by": [],
        "history": [],
        "backend": None,
        "keep_ms": 90_000_000,
        "max_idle_ms": None,
        "if_missing": f"{where}.nobody()",
        "status_by": None,
        "statuses": [],
    }
    assert place == {
        "step": "order.place",
        "starts": True,
        "policy": "ignore",
        "if_missing": None,
        "arguments": ["shop", "number"],
        "found_by": "shop from argument shop, number from argument number",
        "when": [],
        "condition": None,
        "if_not": None,
        "to": [],
        "defer_for_s": 0,
        "formerly": ["shop.place"],
    }
    assert (delivered["if_missing"], look["if_missing"]) == (f"{where}.unknown_parcel()", f"{where}.nobody()")
    assert (nudge["policy"], nudge["defer_for_s"], invoice["max_idle_ms"]) == ("defer", 5, 172_800_000)
    (line,) = run(app, "describe", "invoice", "--json").output.splitlines()
    assert json.loads(line) == invoice
    assert run(app, "describe", "--json", "--graph", "text").exit_code == 2


def test_those_that_are_named(app: Celery, shop: Any) -> None:
    """And no others."""
    result = run(app, "describe", "invoice")

    assert "invoice.paid" in result.output
    assert "order" not in result.output


def test_unknown_name(app: Celery, shop: Any) -> None:
    """It says what there is."""
    result = run(app, "describe", "invoice", "oder")

    assert result.exit_code != 0
    assert "unknown saga oder; known: order, invoice" in result.output


def test_no_saga(app: Celery) -> None:
    """Perhaps a module is not imported."""
    assert "No sagas are defined" in run(app, "describe").output


def test_wrong_definition_is_shown_without_a_traceback(app: Celery) -> None:
    """A command's reader wants the sentence."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, number: int) -> None: ...

    result = run(app, "describe")

    assert result.exit_code == 1
    assert result.output.startswith("Error: order.place: a starter must name its instance")
