"""Requests as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import timedelta
from typing import Any, assert_type

from celery_sagas import Failure, Message, Saga


class Receipt(Message):
    number: str


class Order(Saga, correlate_by="order_id"):
    order_id: str


class Express(Saga, correlate_by="order_id"):
    order_id: str


@Order.starts
def place(order: Order, order_id: str) -> None: ...


@Order.handles
def paid(order: Order, receipt: Receipt) -> None: ...


@Order.handles
def paid_at(order: Order, receipt: str, place: str, *, cash: bool = False) -> None: ...


@Order.handles
def paid_perhaps(order: Order, receipt: str | None = None) -> None: ...


@Order.handles(bind=True, max_retries=3)
def paid_bound(self: Any, order: Order, receipt: str) -> None: ...


@Order.handles
def told(order: Order) -> None: ...


@Order.handles
def told_by_name(order: Order, *, receipt: str) -> None: ...


@Order.handles
def unpaid(order: Order, failure: Failure) -> None: ...


@Order.handles
def unpaid_at(order: Order, failure: Failure, place: str) -> None: ...


@Order.handles
def unpaid_any(order: Order, failure: Any) -> None: ...


@Express.handles
def express_paid(order: Express, receipt: str) -> None: ...


@Express.handles
def express_unpaid(order: Express, failure: Failure) -> None: ...


def requests(order: Order) -> None:
    assert_type(order.send(place.s("42"), then=paid), str)
    order.send(place.s("42"), then=paid, otherwise=unpaid, within=timedelta(hours=1), after=5)
    order.send(place.s("42"), then=place)
    order.send(place.s("42"), then=paid_perhaps, otherwise=unpaid_any)
    order.send(place.s("42"), then=paid_bound)
    order.send(place.s("42"), otherwise=unpaid, within=1.5)
    order.send(place.s("42"), then=paid, progress=paid_at.s("Rome"))
    order.send(place.s("42"), progress=paid)
    assert_type(order.reply(Receipt(number="1")), bool)
    assert_type(order.reply(Receipt(number="1"), last=False), bool)
    order.reply()
    assert_type(order.saga.requester, str | None)


def unchecked(order: Order) -> None:
    """A signature, or a name, is checked when it is sent."""
    order.send(place.s("42"), then=paid_at.s("Rome", cash=True), otherwise=unpaid_at.s("Rome"))
    order.send(place.s("42"), then=told.si())
    order.send(place.s("42"), then="paid", otherwise="order.unpaid")
    order.send(place.s("42"), then=express_paid.s())


def failures(failure: Failure) -> None:
    assert_type(failure.task, str)
    assert_type(failure.retries, int)
    if failure.kind == "deadline":
        return


def wrong_saga(order: Order) -> None:
    order.send(place.s("42"), then=express_paid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), otherwise=express_unpaid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), progress=express_paid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_room(order: Order) -> None:
    order.send(place.s("42"), then=told)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), then=told_by_name)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), progress=told)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), otherwise=told)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), otherwise=paid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def charge_card(order_id: str) -> str:
    return order_id


def no_signature(order: Order) -> None:
    order.send(place)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place, then=paid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send("place", then=paid)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_step(order: Order) -> None:
    order.send(place.s("42"), then=charge_card)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), then=paid, progress=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.reply("1", False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    order.send(place.s("42"), then=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(place.s("42"), then=paid, otherwise=unpaid, within="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
