"""The saga: an order, from checkout to delivery. Each step is a Celery task; its first parameter is the order's state."""

from datetime import timedelta
from decimal import Decimal

from celery import chain

from celery_sagas import Message, Missing, Saga, publish
from example_project.invoices import Invoice, file_invoices
from example_project.payments import CardCharged, CardDeclined, charge_card, refund
from example_project.shipping import ask_carrier, ship

SHOP = "high street"
#: A message that overtook the one that it builds on is handled again after this many seconds, at most so often.
AGAIN_AFTER_S, AT_MOST = 0.3, 200


class OrderPaid(Message):
    """An order was paid for, at one of our shops."""

    shop: str
    order_id: str
    total: Decimal


class Order(Saga, correlate_by="order_id", also_by="tracking"):
    """An order, from checkout to delivery."""

    order_id: str
    total: Decimal  # no default: the first step must set it
    carrier: str = ""
    patience: timedelta = timedelta(days=5)
    receipt: str | None = None
    tracking: str | None = None


@Order.starts(if_exists="ignore")  # creates the order; a second click on "buy" changes nothing
def place_order(order: Order, order_id: str, total: Decimal, card: str, carrier: str, patience: timedelta) -> None:
    """Take an order, and have its card charged."""
    order.total = total
    order.carrier = carrier
    order.patience = patience
    order.send(charge_card.s(order_id, total, card))  # sent with the commit of this step, or not at all


# The customer may be quicker than the checkout.
@Order.handles(if_missing="retry", default_retry_delay=AGAIN_AFTER_S, max_retries=AT_MOST)
def cancel_order(order: Order, order_id: str) -> None:
    """Cancel an order that is not paid yet; what is paid is on its way."""
    if order.receipt is None:
        order.complete()


@Order.handles  # found by the event's order_id
def card_charged(order: Order, event: CardCharged) -> None:
    """Note the receipt, tell whom it may concern, and have the parcel shipped."""
    if order.receipt is not None:  # the participant ran twice, and published two events of the same charge
        return
    order.receipt = event.receipt
    publish(OrderPaid(shop=SHOP, order_id=order.order_id, total=order.total))
    order.send(chain(ship.s(order.order_id, order.carrier), shipped.s()))  # the answer of one goes on to the other


@card_charged.if_missing  # it was cancelled meanwhile
def charged_too_late(missing: Missing, event: CardCharged) -> None:
    """Give back the money of an order that has ended."""
    missing.send(refund.s(event.receipt))


@Order.handles
def card_declined(order: Order, event: CardDeclined) -> None:
    """End an order that cannot be paid."""
    order.complete()


@Order.handles  # names no order: what an order caused finds it by the message's headers, which plain tasks hand on
def shipped(order: Order, number: str) -> None:
    """Note the parcel's number; the order can be found by it from now on. It should arrive before patience ends."""
    order.tracking = number
    order.schedule(still_waiting, after=order.patience, name="delivery")  # it ends with the order, or when it is unscheduled


@Order.handles
def still_waiting(order: Order) -> None:
    """Ask the carrier about a parcel of which nobody has heard."""
    order.send(ask_carrier.s(order.tracking))


# The carrier may be quicker than the shop, and knows the parcel's number only.
@Order.handles(by="tracking", if_missing="retry", default_retry_delay=AGAIN_AFTER_S, max_retries=AT_MOST)
def parcel_delivered(order: Order, tracking: str) -> None:
    """End an order that has arrived, and with it what is still scheduled; its invoice is filed in the carrier's book."""
    order.send(file_invoices.s(Invoice(number=order.order_id, book=order.carrier, total=order.total)))
    order.complete()
