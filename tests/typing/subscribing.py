"""Subscribers as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from celery import shared_task

from celery_sagas import Message, Saga, subscribe


class Order(Saga, correlate_by="order_id"):
    order_id: str


class Placed(Message):
    order_id: str


@subscribe
@shared_task(acks_late=True)
def on_order(event: Placed) -> int:
    return len(event.order_id)


@subscribe
@shared_task
def on_order_too(event: Placed | None) -> None: ...


on_order.delay(Placed(order_id="42"))
on_order.s(Placed(order_id="42"))
