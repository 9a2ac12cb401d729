"""Orders that an operator looks for in a browser, and mends."""

from datetime import timedelta

from celery import shared_task
from deployed import FOLDER, make_app

from celery_sagas import Saga

app = make_app()


class Order(Saga, correlate_by="number", search_by="customer", history="values", name="order"):
    """Waits for its delivery."""

    number: str
    customer: str
    city: str = "Oslo"
    packed: int = 0


@shared_task(name="browsed.ask")
def ask(number: str) -> None:
    """Never answer in time: it is in a queue of its own."""


@Order.starts
def place(order: Order, number: str, customer: str) -> None:
    """Wait for an answer, and for the delivery."""
    order.customer = customer
    order.send(ask.s(number), then=answered)
    order.schedule(give_up, after=timedelta(days=7), name="delivery")


@Order.handles
def answered(order: Order, answer: str) -> None:
    """Go on."""


@Order.handles
def give_up(order: Order) -> None:
    """End it."""
    order.complete()


@Order.handles
def pack(order: Order, number: str) -> None:
    """Fail until the shelf is there."""
    if not (FOLDER / "shelf").exists():
        raise LookupError("no such shelf")
    order.packed += 1
