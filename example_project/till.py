"""A second saga: the till of a shop, which all of its payments count on at once."""

from decimal import Decimal

from celery_sagas import Saga
from example_project.orders import OrderPaid


class Till(Saga, correlate_by="shop"):
    """What a shop has taken today."""

    shop: str
    orders: int = 0
    taken: Decimal = Decimal(0)


# Several workers count at the same time, and a message may be delivered twice: each payment is counted once all the same.
@Till.starts  # the day's first payment opens the till
def count_payment(till: Till, event: OrderPaid) -> None:
    """Count a payment."""
    till.orders += 1
    till.taken += event.total


@Till.handles(if_missing="raise")
def close_till(till: Till, shop: str) -> None:
    """End the day."""
    till.complete()
