"""Shipping: a plain Celery task that hands parcels over to a carrier, whose reports come in an order of their own."""

from celery import current_app, shared_task


@shared_task
def ship(order_id: str, carrier: str) -> str:
    """Hand a parcel over; the answer is its tracking number, which goes on to the next task of the chain.

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

    The id of its report becomes the id of the message, so that a report that is repeated is recognised as a repeat.
    """
    current_app.send_task(
        "order.parcel_delivered", kwargs={"tracking": tracking}, task_id=f"delivery-of-{tracking}", countdown=after or None
    )
