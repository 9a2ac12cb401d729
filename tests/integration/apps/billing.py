"""Another service, which knows an event by its fields alone: a step of it, and a plain task."""

from typing import Any

from deployed import make_app, note

from celery_sagas import Message, Saga

app = make_app()


class Placed(Message):
    order_id: str


class Bill(Saga, correlate_by="order_id"):
    order_id: str
    told: int = 0


@Bill.starts
def order_placed(bill: Bill, event: Placed) -> None:
    bill.told += 1


@app.task(name="on_order", bind=True, acks_late=True)
def on_order(self: Any, event: dict[str, Any]) -> None:
    note("told", f"{event['order_id']} {self.request.id}")
