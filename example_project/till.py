"""A second saga: the till of a shop, which all of its sales count on at once."""

from decimal import Decimal

from celery_sagas import Saga
from example_project.orders import OrderDelivered


class Till(Saga, correlate_by="shop"):
    """What a shop has sold today."""

    shop: str
    orders: int = 0
    taken: Decimal = Decimal(0)


# It subscribes to the event, by its annotation; who publishes it knows nothing of tills. Several workers count at the same time,
# and a message may be delivered twice: each sale is counted once all the same.
@Till.starts  # the day's first sale opens the till
def count_sale(till: Till, event: OrderDelivered) -> None:
    """Count a sale."""
    till.orders += 1
    till.taken += event.total


@Till.handles(if_missing="raise")
def close_till(till: Till, shop: str) -> None:
    """End the day."""
    till.complete()
