"""Waiting as type checkers see it, with and without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import timedelta
from typing import assert_type

from celery_sagas import Outcome, Saga


class Base(Saga):
    def is_done(self) -> bool:
        return True


class Order(Base, correlate_by="order_id", also_by="tracking"):
    order_id: str
    tracking: str | None = None
    paid: bool = False


class Other(Saga, correlate_by="order_id"):
    order_id: str


def is_paid(order: Order) -> bool:
    return order.paid


def is_other(other: Other) -> bool:
    return other.order_id == "42"


def waits() -> None:
    assert_type(Order.wait("42", until=lambda order: order.paid, timeout=5), Order)
    assert_type(Order.wait("42", until=is_paid, timeout=timedelta(seconds=5)), Order)
    assert_type(Order.wait(tracking="1Z", until=Order.is_done, timeout=0.5), Order)
    assert_type(Order.wait("42", until=lambda order: order.tracking, timeout=5).tracking, str | None)
    assert_type(Order.wait("42", until="completed", timeout=5), Outcome[Order])
    assert_type(Base.wait("42", until=Base.is_done, timeout=5), Base)


def wrong_waits() -> None:
    Order.wait("42", until=is_paid)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Order.wait("42", timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    Order.wait("42", until="paid", timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    Order.wait("42", until=is_other, timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    Order.wait("42", until=is_paid, timeout="5")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    Order.wait("42", until=is_paid(Order(order_id="42")), timeout=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
