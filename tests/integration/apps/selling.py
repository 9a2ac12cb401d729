"""Sales that are told of an event, as is a plain task; and a plain task that publishes it."""

from typing import Any

from celery import shared_task
from deployed import make_app, note
from happenings import Placed

from celery_sagas import Saga, publish, subscribe

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


@subscribe
@shared_task(name="tally", bind=True, acks_late=True)
def tally(self: Any, event: Placed) -> None:
    note("tallied", f"{event.order_id} {self.request.id}")


@app.task(name="announce", acks_late=True)
def announce(order_id: str) -> None:
    publish(Placed(order_id=order_id))
