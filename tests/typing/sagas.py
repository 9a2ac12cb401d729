"""Sagas as type checkers see them. Checked, never run; each ``ignore`` is an error that must be found.

No checker looks at class keywords where there is a metaclass, as pydantic's: a wrong one is a ``DefinitionError`` at import.
"""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, assert_type

from celery_sagas import Outcome, Saga, SagaView


class Base(Saga):
    """An abstract saga."""

    note: str = ""


class Order(
    Base,
    correlate_by="order_id",
    also_by=("tracking",),
    search_by="note",
    name="order",
    formerly="purchase",
    schema_version=2,
    history=("messages", "values"),
    keep=timedelta(days=1),
    max_idle=timedelta(days=7),
    backend="orders",
):
    """A concrete one, with every class keyword."""

    order_id: str
    total: Decimal
    tracking: str | None = None

    @classmethod
    def upgrade(cls, data: dict[str, Any], schema_version: int) -> dict[str, Any]:
        return data | {"total": schema_version}


def attributes(order: Order) -> None:
    assert_type(order.order_id, str)
    assert_type(order.total, Decimal)
    assert_type(order.note, str)
    assert_type(order.saga, SagaView)
    assert_type(order.saga.is_new, bool)
    assert_type(order.saga.message.id, str)
    assert_type(order.saga.message.at, datetime | None)
    order.total = Decimal(3)
    order.total = "3"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    order.saga = None  # type: ignore[assignment, misc]  # pyright: ignore[reportAttributeAccessIssue]
    order.complete()
    print(order.totl)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


def queries() -> None:
    assert_type(Order.find("42"), Order | None)
    assert_type(Order.find(tracking="1Z"), Order | None)
    assert_type(Order.find(id="6f1"), Order | None)
    assert_type(Base.find("42"), Base | None)
    assert_type(list(Order.all()), list[Order])
    assert_type([order.total for order in Order.all(oldest_first=True)], list[Decimal])
    assert_type(Order.all(note="gift").count(at_most=3), int)
    Order.find("42", id="6f1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Order.find("42", tracking="1Z")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    print(Order.find("42").total)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    outcome = Order.outcome("42")
    if outcome is not None:
        assert_type(outcome, Outcome[Order])
        assert_type(outcome.at, datetime | None)
        assert_type(outcome.state, Order | None)
        print(outcome.state.total)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
        any_outcome: Outcome[Base] = outcome
        note(outcome, any_outcome)


def note(outcome: Outcome, other: Outcome[Any]) -> None:
    """An outcome of some saga, as a signal's receiver names it."""
    assert_type(outcome.state, Any | None)
    assert_type(outcome, Outcome[Any])
    assert_type(other.key, str)
