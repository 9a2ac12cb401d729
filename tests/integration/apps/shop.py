"""A shop: an order from checkout to delivery, its participants plain tasks that know of no saga."""

from decimal import Decimal

from celery import shared_task
from deployed import make_app

from celery_sagas import Saga

app = make_app()


class Order(Saga, correlate_by="order_id", also_by="tracking"):
    order_id: str
    total: Decimal
    receipt: str | None = None
    tracking: str | None = None


@Order.starts(if_exists="ignore")
def place_order(order: Order, order_id: str, total: Decimal) -> None:
    order.total = total


@Order.handles
def pay(order: Order, order_id: str, card: str) -> None:
    order.send(charge_card.s(order_id, order.total, card))


@Order.handles
def card_charged(order: Order, receipt: str) -> None:
    order.receipt = receipt
    order.send(ship.s(order.order_id))


@Order.handles
def card_declined(order: Order) -> None:
    order.complete()


@Order.handles
def shipped(order: Order, parcel: str) -> None:
    order.tracking = parcel
    order.send(deliver.si(parcel))


@Order.handles(by="tracking", if_missing="raise")
def parcel_delivered(order: Order, tracking: str) -> None:
    order.complete()


@shared_task(ignore_result=True)
def charge_card(order_id: str, total: Decimal, card: str) -> None:
    if card == "declined":
        card_declined.delay()
    else:
        card_charged.delay(receipt=f"{order_id}:{total}")


@shared_task(ignore_result=True)
def ship(order_id: str) -> None:
    shipped.delay(parcel=f"parcel of {order_id}")


@shared_task(ignore_result=True)
def deliver(tracking: str) -> None:
    parcel_delivered.delay(tracking=tracking)
