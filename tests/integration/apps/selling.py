"""Sales that are told of an event; and a plain task that publishes it."""

from deployed import make_app
from happenings import Placed

from celery_sagas import Saga, publish

app = make_app()


class Sale(Saga, correlate_by="order_id"):
    order_id: str
    told: int = 0


@Sale.starts
def placed(sale: Sale, event: Placed) -> None:
    sale.told += 1


@Sale.handles
def close(sale: Sale, order_id: str) -> None:
    sale.complete()


@app.task(name="announce", acks_late=True)
def announce(order_id: str) -> None:
    publish(Placed(order_id=order_id))
