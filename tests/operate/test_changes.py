"""What operators are told of the changes of an instance, whichever store has its journal."""

import json
from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel, Field

from celery_sagas import Saga
from celery_sagas.operate import Changed, ChangedValue, OperatedInstance, Operator
from celery_sagas.operate.changes import changed_in, with_values
from celery_sagas.operate.redact import MARK
from celery_sagas.testing.samples import entry
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

HIDDEN = ("*password*",)


class Card(BaseModel):
    """A card, a part of which is hidden."""

    owner: str
    number: str = Field(repr=False)


@pytest.fixture
def shop(definitions: None) -> Any:
    class Order(Saga, correlate_by="order_id", also_by="tracking", history="values"):
        order_id: str
        total: int = 0
        tracking: str | None = None
        paid_with: Card | None = None
        pin: str = Field(default="", repr=False)
        more: dict[str, Any] = {}

    @Order.starts
    def place(order: Order, order_id: str, total: int) -> None:
        order.total, order.tracking = total, f"1Z-{order_id}"

    @Order.handles
    def pay(order: Order, order_id: str, owner: str, number: str) -> None:
        order.paid_with, order.pin = Card(owner=owner, number=number), number
        order.more = {"list": [{"password": number, "other": 1}], "text": "漢\x1b[2J" + "x" * 5_000 * (owner == "large")}

    @Order.handles
    def end(order: Order, order_id: str) -> None:
        order.complete()

    Order.place, Order.pay, Order.end = place, pay, end  # type: ignore[attr-defined]
    return Order


def instance(app: Celery, **by: Any) -> OperatedInstance:
    return Operator(app, "ann").instance("order", **(by or {"order_id": "1"}))


def told(changes: list[Changed]) -> list[tuple[Any, ...]]:
    return [(each.version, each.by, each.names) for each in changes]


def test_changes_are_told_on_each_store(stored_app: Celery, shop: Any) -> None:
    assert instance(stored_app).changes() == []
    shop.place("1", 9)
    shop.pay("1", "Ada", "4242")
    instance(stored_app).patch("typo", values={"total": 10, "pin": "4711"})
    shop.pay("1", "large", "4242")
    instance(stored_app).pause("carrier down")
    changes = instance(stored_app).changes()

    assert told(changes) == [
        (1, "order.place", ("total", "tracking")),
        (2, "order.pay", ("paid_with", "pin", "more")),
        (3, "ann (patch)", ("total", "pin")),
        (4, "order.pay", ("paid_with", "pin", "more")),
    ]
    first, paid, patched, large = changes
    assert first.values == {"total": ChangedValue(0, 9), "tracking": ChangedValue(None, "1Z-1")}
    more = {"list": [{"password": MARK, "other": 1}], "text": "漢\x1b[2J"}
    assert paid.values == {
        "paid_with": ChangedValue(None, {"owner": "Ada", "number": MARK}),
        "pin": ChangedValue(MARK, MARK),
        "more": ChangedValue({}, more),
    }
    assert patched.values == {}
    assert (large.values["more"].before, large.values["more"].after) == (more, None)
    assert large.values["more"].after_size > 5_000
    assert (first.at.tzinfo is not None, first.many) == (True, False)
    assert instance(stored_app, tracking="1Z-1").changes() == changes
    assert instance(stored_app).changes(limit=2) == changes[3:]


def test_newest_instance_counts_also_when_it_has_ended(app: Celery, shop: Any) -> None:
    for total in (5, 6):
        shop.place("1", total)
        id = shop.find("1").saga.id
        shop.end("1")
    assert [each.values["total"].after for each in instance(app).changes()] == [6]
    assert instance(app, id=id).changes() == []


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "5", 1.0])
def test_limit_that_is_none(app: Celery, shop: Any, limit: Any) -> None:
    with pytest.raises(ValueError, match="is no number from 1 to 10,000"):
        instance(app).changes(limit=limit)


def test_field_that_is_hidden_since_then(app: Celery, shop: Any, definitions: None) -> None:
    """What code that did not hide it has kept is not shown."""

    class Order(Saga, correlate_by="order_id", name="hiding", history="values"):
        order_id: str
        total: int = Field(default=0, repr=False)

    detail = {"changed": ["total", "gone", "user_password"]}
    detail["values"] = {"total": [1, 2], "gone": [None, "x"], "user_password": ["x", None]}  # type: ignore[assignment]
    changed = with_values(Order.__saga__, entry(key="1")._replace(detail=json.dumps(detail)), HIDDEN)  # type: ignore[arg-type]
    assert changed is not None
    assert dict(changed.values) == {
        "total": ChangedValue(MARK, MARK),
        "gone": ChangedValue(None, MARK),
        "user_password": ChangedValue(MARK, None),
    }


@pytest.mark.parametrize(
    ("detail", "names", "many"),
    [
        ({"changed": ["total"]}, ("total",), False),
        ({"changed": []}, (), False),
        ({"changed": "many"}, (), True),
        ({"changed": ["a"] * 51}, (), True),
        ({"changed": ["a", 5, None, ["b"]]}, ("a",), False),
        ({"act": "patch", "fields": ["total"], "actor": "ann"}, ("total",), False),
        ({"act": "patch", "fields": [f"line-{number}" for number in range(51)]}, (), True),
    ],
)
def test_entries_that_say_it(detail: Any, names: tuple[str, ...], many: bool) -> None:
    changed = changed_in(entry(key="1")._replace(detail=json.dumps(detail)))
    assert changed is not None
    assert (changed.names, changed.many) == (names, many)


@pytest.mark.parametrize(
    "detail",
    [
        *({}, [], {"changed": None}, {"changed": {"total": 1}}, {"changed": "total"}, {"fields": ["total"]}),
        {"act": "reindex", "fields": ["total"]},
    ],
)
def test_entries_that_do_not_say_it(detail: Any) -> None:
    assert changed_in(entry(key="1")._replace(detail=json.dumps(detail))) is None


@pytest.mark.parametrize("values", [[], "x", {"total": 5}, {"total": [1]}, {"total": {"0": 1, "1": 2}}, {"other": [1, 2]}])
def test_values_of_another_form(app: Celery, shop: Any, values: Any) -> None:
    detail = json.dumps({"changed": ["total"], "values": values, "sizes": {"total": "xy"}})
    changed = with_values(shop.__saga__, entry(key="1")._replace(detail=detail, at=10**18), HIDDEN)
    assert changed is not None
    assert (changed.names, dict(changed.values)) == (("total",), {})


def test_sizes_of_another_form(app: Celery, shop: Any) -> None:
    detail = json.dumps({"changed": ["total"], "values": {"total": [1, None]}, "sizes": {"total": ["x", 7]}})
    changed = with_values(shop.__saga__, entry(key="1")._replace(detail=detail), HIDDEN)
    assert changed is not None
    assert changed.values == {"total": ChangedValue(1, None, 0, 7)}
