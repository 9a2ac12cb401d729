"""Orders of a shop that operators look at."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Literal

from celery import shared_task
from pydantic import Field

from celery_sagas import Batch, Failure, Gathered, Saga, aggregator


@shared_task
def charge(order_id: str, token: str = "") -> str:
    return "charged"


@shared_task
def review(order_id: str) -> str:
    return "fine"


@shared_task
def ship(order_id: str) -> str:
    return "shipped"


def define() -> Any:
    """Define the sagas; return them with their steps."""

    class Order(
        Saga, correlate_by="order_id", also_by="tracking", search_by=("city", "status"), status_by="status", history="values"
    ):
        order_id: str
        city: str = "Oslo"
        total: int = 0
        tracking: str | None = None
        status: Literal["placed", "paid", "sent"] = "placed"
        card: str | None = Field(default=None, repr=False)
        notes: list[str] = []

    @Order.starts(if_exists="ignore")
    def place(order: Order, order_id: str, tracking: str | None = None) -> None:
        order.tracking = tracking
        order.send(charge.s(order_id, token="t"), then=charged, otherwise=not_charged, within=timedelta(hours=1))
        order.schedule(remind, after=3_600, name="reminder")

    @Order.handles
    def pay(order: Order, order_id: str, card: str) -> None:
        order.card, order.total = card, order.total + 1
        order.schedule(remind, every=timedelta(days=1), name="daily")
        order.send(review.s(order_id), then=reviewed)
        order.gather([ship.s("a"), ship.s("b")], then=packed)

    @Order.handles(when="placed", to="paid")
    def charged(order: Order, receipt: str) -> None:
        order.notes.append(receipt)

    @Order.handles
    def not_charged(order: Order, failure: Failure) -> None:
        order.complete()

    @Order.handles(when="paid", to="sent")
    def packed(order: Order, outcomes: Gathered[str]) -> None:
        order.notes += outcomes.values

    @Order.handles
    def reviewed(order: Order, answer: str) -> None:
        order.notes.append(answer)

    @Order.handles
    def remind(order: Order) -> None:
        order.notes.append("reminded")

    @Order.handles
    def parcel(order: Order, tracking: str) -> None:
        order.complete()

    @Order.handles
    def broken(order: Order, order_id: str, card: str) -> None:
        raise KeyError("\x1b[2Jno such thing")

    class Cart(Saga, correlate_by=("region", "cart_id")):
        region: str
        cart_id: str

    @Cart.starts
    def fill(cart: Cart, region: str, cart_id: str) -> None: ...

    @aggregator(size=10, name="index")
    def index(batch: Batch[str]) -> None: ...

    names = {name: value for name, value in locals().items() if name != "names"}
    return SimpleNamespace(**names)
