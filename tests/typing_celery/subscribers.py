"""Subscribers as type checkers see them with celery-types. Checked, never run; see ``typing/sagas.py``."""

from typing import assert_type

from celery import shared_task

from celery_sagas import Message, Saga, subscribe


class Order(Saga, correlate_by="order_id"):
    order_id: str


class Placed(Message):
    order_id: str


@shared_task(acks_late=True)
def on_order(event: Placed) -> int:
    return len(event.order_id)


@subscribe
@shared_task
def on_order_too(event: Placed | None) -> None: ...


on_order_too.delay(Placed(order_id="42"))


@Order.starts
def placed(order: Order, event: Placed) -> None: ...


def subscribers() -> None:
    assert_type(subscribe(on_order).delay(Placed(order_id="42")).get(), int)
    subscribe(on_order).delay(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_tasks() -> None:
    subscribe(placed)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    subscribe(len)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
