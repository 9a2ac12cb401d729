"""Shipping: plain Celery tasks that talk to the carriers, whose reports come in an order of their own."""

from datetime import timedelta
from decimal import Decimal

from celery import current_app, shared_task
from celery.exceptions import Ignore

from celery_sagas import Message

CARRIERS = ("prompt", "hasty", "silent")
#: What each of them asks for a parcel, by its destination; where none is named, it does not go there.
_PRICES = {
    "town": {"prompt": "3.90", "hasty": "4.20", "silent": "6.10"},
    "harbour": {"prompt": "5.10", "hasty": "4.80"},
    "hills": {"hasty": "9.90", "silent": "6.40"},
}


class Quote(Message):
    """What a carrier asks for a parcel."""

    carrier: str
    price: Decimal
    promise: timedelta  #: when it will be there, at the latest


class NotServed(Exception):
    """Raised when a carrier does not go to a destination."""


@shared_task(throws=(NotServed,))
def quote(carrier: str, destination: str) -> Quote:
    """Ask a carrier for a quote."""
    if destination == "island" and carrier == "silent":
        raise Ignore  # it has the request, and never answers: nothing comes of this task, neither an answer nor a failure
    price = _PRICES.get(destination, {}).get(carrier)
    if price is None:
        raise NotServed(f"{carrier} does not go to the {destination}")
    promise = timedelta(seconds=1) if carrier == "silent" else timedelta(days=5)
    return Quote(carrier=carrier, price=Decimal(price), promise=promise)


@shared_task
def ship(order_id: str, carrier: str) -> str:
    """Hand a parcel over to a carrier; return its tracking number.

    It may run twice: the number depends on the order alone, and the carrier's reports bear ids of their own.
    """
    tracking = f"1Z-{order_id}"
    if carrier == "hasty":  # delivered before the shop has heard of the number; and the carrier says so twice
        _carrier_reports_delivery(tracking, after=0)
        _carrier_reports_delivery(tracking, after=0)
    elif carrier == "prompt":
        _carrier_reports_delivery(tracking, after=0.5)
    return tracking


@shared_task
def ask_carrier(tracking: str) -> None:
    """Ask about a parcel; a carrier that has forgotten it looks, and finds that it was delivered."""
    _carrier_reports_delivery(tracking, after=0)


def _carrier_reports_delivery(tracking: str, after: float) -> None:
    """Do what the carrier does: it knows the name of a task of ours, and the number of the parcel.

    The id of its report becomes the id of the message, so that a report that is repeated is recognized as a repeat.
    """
    current_app.send_task(
        "order.parcel_delivered", kwargs={"tracking": tracking}, task_id=f"delivery-of-{tracking}", countdown=after or None
    )
