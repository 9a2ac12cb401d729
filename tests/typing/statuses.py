"""Statuses as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import timedelta
from enum import Enum
from typing import Any, Literal, assert_type

from celery_sagas import DeferredMessage, Saga


class Mood(Enum):
    CALM = "calm"
    ANGRY = "angry"


class Order(Saga, correlate_by="order_id", status_by="status"):
    order_id: str
    status: Literal["placed", "paid"] = "placed"
    count: int = 0


@Order.starts(when="placed", to="placed", if_not="ignore")
def place(order: Order, order_id: str) -> None: ...


@Order.handles(when={"placed", "paid"}, to=("paid", "placed"), if_not="defer", if_missing="defer", defer_for=timedelta(1))
def pay(order: Order, order_id: str, total: int) -> str:
    return order_id


@Order.handles(when=Mood.CALM, to=[Mood.ANGRY], if_not="defer", defer_for=3.5)
def annoy(order: Order, order_id: str) -> None: ...


pay.delay("42", 3)
pay.delay("42", "3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(pay("42", 3), str)


def is_next(order: Order, order_id: str, number: int) -> bool:
    return number == order.count


@Order.handles(when=is_next, if_not="defer")
def count(order: Order, order_id: str, number: int) -> int:
    return number


count.delay("42", 1)
count.delay("42", "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(count("42", 1), int)


@Order.handles(when=is_next, bind=True)
def count_bound(self: Any, order: Order, order_id: str, number: int) -> None: ...


count_bound.delay("42", 1)


@Order.handles(when=is_next)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def count_other(order: Order, order_id: str, number: str) -> None: ...


@Order.handles(when=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore
def three(order: Order, order_id: str) -> None: ...


@Order.handles(if_not="wait")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wait(order: Order, order_id: str) -> None: ...


def watch(order: Order) -> None:
    for waiting in order.saga.deferred:
        assert_type(waiting, DeferredMessage)
        print(waiting.step, waiting.since.isoformat())
