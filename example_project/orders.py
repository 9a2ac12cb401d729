"""The saga: an order, from checkout to delivery. Each step is a Celery task; its first parameter is the order's state."""

from datetime import timedelta
from decimal import Decimal
from typing import Literal

from celery_sagas import Failure, Gathered, Message, Saga, publish
from example_project.invoices import Invoice, file_invoices
from example_project.payments import charge_card, give_back
from example_project.shipping import CARRIERS, Quote, ask_carrier, quote, ship

SHOP = "high street"
#: How long a message that has overtaken the one that it builds on may wait for it.
EARLY = timedelta(minutes=5)


class OrderDelivered(Message):
    """An order has arrived, from one of our shops."""

    shop: str
    order_id: str
    total: Decimal


class Order(Saga, correlate_by="order_id", also_by="tracking", status_by="status", search_by="status"):
    """An order, from checkout to delivery."""

    order_id: str
    status: Literal["placed", "paid", "shipped", "cancelled"] = "placed"  # a step says in which it runs, and to which it leads
    total: Decimal  # no default: the first step must set it
    destination: str = ""
    patience: timedelta = timedelta(hours=1)  # with the carriers, until they say what they ask for the parcel
    receipt: str | None = None
    carrier: str = ""
    tracking: str | None = None


@Order.starts(if_exists="ignore", to="placed")  # creates the order; a second click on "buy" changes nothing
def place_order(order: Order, order_id: str, total: Decimal, card: str, destination: str, patience: timedelta) -> None:
    """Take an order, and have its card charged."""
    order.total = total
    order.destination = destination
    order.patience = patience
    # Sent with the commit of this step, or not at all. What comes of it finds this very order: the receipt that the task
    # returns, or a failure; one outcome, once, however often the task runs. Its undo takes no receipt: a bank that has failed, or
    # has not answered, may have charged the card all the same.
    hour, undo = timedelta(hours=1), give_back.si(order_id)
    order.send(charge_card.s(order_id, total, card), then=card_charged, otherwise=not_charged, within=hour, undo=undo)


# The customer may be quicker than the checkout: then the message waits for the order. What is paid is on its way.
@Order.handles(when="placed", to="cancelled", if_not="ignore", if_missing="defer", defer_for=EARLY)
def cancel_order(order: Order, order_id: str) -> None:
    """Cancel an order that is not paid yet."""
    order.compensate(then=given_back)  # the card is being charged: what comes of that is awaited, and undone


@Order.handles(when="placed", to="paid")
def card_charged(order: Order, receipt: str) -> None:
    """Note the receipt, and ask all carriers at once what they want for the parcel."""
    order.receipt = receipt
    quotes = [quote.s(carrier, order.destination) for carrier in CARRIERS]
    order.gather(quotes, then=carriers_answered, otherwise=nobody_delivers, at_least=1, within=order.patience)


@Order.handles(when="placed", to="cancelled")
def not_charged(order: Order, failure: Failure) -> None:
    """End an order that cannot be paid."""
    order.compensate(then=given_back)


@Order.handles(when="paid")
def carriers_answered(order: Order, quotes: Gathered[Quote]) -> None:
    """Have the parcel shipped with the cheapest; who does not go there has failed, and who did not answer was silent."""
    best = min(quotes.values, key=lambda each: each.price)
    order.carrier = best.carrier
    order.send(ship.s(order.order_id, best.carrier), then=shipped.s(promise=best.promise))  # the answer is put before that


@Order.handles(when="paid", to="cancelled")
def nobody_delivers(order: Order, quotes: Gathered[Quote]) -> None:
    """End an order for which there is no carrier."""
    order.compensate(then=given_back)


@Order.handles(when="cancelled")
def given_back(order: Order) -> None:
    """End an order whose money was given back: this runs when that has worked, and it is tried again until it has."""
    order.complete()


@Order.handles(when="paid", to="shipped")
def shipped(order: Order, tracking: str, promise: timedelta) -> None:
    """Note the parcel's number; the order can be found by it from now on. It should arrive as the carrier has promised."""
    order.tracking = tracking
    order.schedule(still_waiting, after=promise, name="delivery")  # it ends with the order, or when it is unscheduled


@Order.handles(when="shipped")
def still_waiting(order: Order) -> None:
    """Ask the carrier about a parcel of which nobody has heard."""
    order.send(ask_carrier.s(order.tracking))


# The carrier may be quicker than the shop, and knows the parcel's number only.
@Order.handles(by="tracking", when="shipped", if_missing="defer", defer_for=EARLY)
def parcel_delivered(order: Order, tracking: str) -> None:
    """End an order that has arrived, and with it what is still scheduled; tell whom it may concern, and file the invoice."""
    publish(OrderDelivered(shop=SHOP, order_id=order.order_id, total=order.total))  # the till subscribes to it
    order.send(file_invoices.s(Invoice(number=order.order_id, book=order.carrier, total=order.total)))
    order.complete()
