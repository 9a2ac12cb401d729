"""What tasks answer, as type checkers see it with celery-types. Checked, never run; see ``typing/sagas.py``."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, TypedDict, assert_type

from celery import chain, shared_task, signature
from celery.canvas import Signature

from celery_sagas import Batch, Gathered, Message, Saga


class Receipt(Message):
    number: str


class CashReceipt(Receipt):
    till: int


class Row(TypedDict):
    number: str


class Order(Saga, correlate_by="order_id"):
    order_id: str


class Parcel(Saga, correlate_by="parcel_id"):
    parcel_id: str


@Order.handles
def text_came(order: Order, answer: str) -> None: ...


@Order.handles
def text_came_at(order: Order, answer: str | None, place: str = "", *, cash: bool = False) -> None: ...


@Order.handles(bind=True, max_retries=3)
def text_came_bound(self: Any, order: Order, answer: str) -> None: ...


@Order.handles
def integer_came(order: Order, answer: int) -> None: ...


@Order.handles
def number_came(order: Order, answer: float) -> None: ...


@Order.handles
def price_came(order: Order, answer: Decimal) -> None: ...


@Order.handles
def receipt_came(order: Order, answer: Receipt) -> None: ...


@Order.handles
def receipt_came_perhaps(order: Order, answer: Receipt | None) -> None: ...


@Order.handles
def anything_came(order: Order, answer: Any) -> None: ...


@Order.handles
def nothing_came(order: Order) -> None: ...


@Order.handles
def integers_came(order: Order, came: Gathered[int]) -> None: ...


@Order.handles
def texts_came(order: Order, came: Gathered[str], place: str = "") -> None: ...


@Order.handles
def texts_or_integers_came(order: Order, came: Gathered[str | int]) -> None: ...


@Order.handles
def receipts_came(order: Order, came: Gathered[Receipt]) -> None: ...


@Order.handles
def whatever_came(order: Order, came: Gathered[Any]) -> None: ...


@Parcel.starts
def pack(parcel: Parcel, parcel_id: str) -> None: ...


@shared_task
def text(order_id: str) -> str:
    return order_id


@shared_task(acks_late=True)
def integer(order_id: str) -> int:
    return int(order_id)


@shared_task
def cash_receipt(order_id: str) -> CashReceipt:
    return CashReceipt(number=order_id, till=3)


@shared_task
def row(order_id: str) -> Row:
    return {"number": order_id}


@shared_task
def nothing(order_id: str) -> None: ...


@shared_task
def untold(order_id: str) -> Any: ...


def answers(order: Order) -> None:
    assert_type(order.send(text.s("42"), then=text_came), str)
    order.send(text.si("42").set(queue="slow"), then=text_came_at)
    order.send(text.s("42"), then=text_came_bound)
    order.send(text.s("42"), then=anything_came)
    order.send(integer.s("42"), then=number_came)
    order.send(cash_receipt.s("42"), then=receipt_came)
    order.send(cash_receipt.s("42"), then=receipt_came_perhaps)
    order.send(nothing.s("42"))


def batches(batch: Batch[str]) -> None:
    assert_type(batch.send(text.s("42"), after=5), str)
    batch.send(text.si("42").set(queue="slow"))
    batch.send(chain(text.s("42"), text.s()))
    batch.send(text.s("42") | text.s())
    batch.send(signature("shop.text", args=("42",)))
    batch.send(text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def unknown_answers(order: Order, found: "Signature[Any]") -> None:
    """Of a chain, of a step, and of a signature that is made from a name nothing is known."""
    order.send(untold.s("42"), then=text_came)
    order.send(found, then=text_came)
    order.send(signature("elsewhere.text"), then=text_came)
    order.send(chain(integer.s("42"), text.s()), then=text_came)
    order.send(integer.s("42") | text.s(), then=text_came)
    order.send(integer.s("42") | text.s() | text.s(), then=text_came)
    order.send(pack.s("42"), then=receipt_came)


def converted_answers(order: Order) -> None:
    """An answer of another type may be converted: a signature of the step, or its name, is not checked."""
    order.send(text.s("42"), then=price_came.s())
    order.send(text.s("42"), then=price_came.s(), otherwise="unpaid", within=5)
    order.send(row.s("42"), then="receipt_came")
    order.gather([row.s("42")], then=receipts_came.s())


def wrong_answers(order: Order) -> None:
    order.send(text.s("42"), then=integer_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(text.s("42"), then=price_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(text.s("42"), then=receipt_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(integer.s("42"), then=text_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(integer.s("42"), then=text_came_at)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(integer.s("42"), then=text_came_bound)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(integer.si("42"), then=text_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(nothing.s("42"), then=text_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(text.s("42"), then=nothing_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.send(row.s("42"), then=receipt_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def gathered(order: Order) -> None:
    assert_type(order.gather([text.s("42"), text.s("43")], then=texts_came, otherwise=texts_came, within=5), str)
    order.gather((text.s(key) for key in "123"), then=texts_came)
    order.gather([text.s("42")], then=texts_or_integers_came, otherwise=whatever_came, within=5)
    order.gather([cash_receipt.s("42")], then=receipts_came)
    receipts = [cash_receipt.s(key) for key in "123"]
    order.gather(receipts, then=receipts_came)
    order.gather([chain(integer.s("42"), text.s()), text.s("42")], then=texts_came)
    order.gather([integer.s("42") | text.s(), text.s("42")], then=texts_came)
    order.gather([pack.s("42"), untold.s("42")], then=texts_came)


def gathered_of_several_types(order: Order) -> None:
    """To mypy a list of several types is one of objects, unless it is annotated."""
    members: list[Signature[str | int]] = [text.s("42"), integer.s("42")]
    order.gather(members, then=texts_or_integers_came)
    order.gather([text.s("42"), integer.s("42")], then=whatever_came)


def wrongly_gathered(order: Order, members: "Iterable[Signature[str]]") -> None:
    order.gather([text.s("42")], then=integers_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=integers_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather(members, then=texts_came, otherwise=integers_came, within=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather([integer.s("42")], then=receipts_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather([text.s("42"), integer.s("42")], then=integers_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather([nothing.s("42")], then=texts_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_signature(order: Order) -> None:
    order.send(text, then=text_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    order.gather([text], then=texts_came)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
