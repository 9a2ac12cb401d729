"""Orders whose steps are tried."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from celery import Celery, shared_task
from pydantic import Field
from sqlalchemy.orm import Session

from celery_sagas import Backoff, Batch, Failure, Gathered, Message, Missing, Saga, aggregator, publish


class Paid(Message):
    """An event."""

    order_id: str
    pin: Annotated[str, Field(repr=False)] = ""


@shared_task
def charge(order_id: str, token: str = "") -> str:
    return "charged"


@shared_task
def ship(order_id: str) -> str:
    return "shipped"


@shared_task
def mail(text: str) -> None: ...


def define() -> Any:
    """Define the saga; return it with its steps, and with what a handler calls meanwhile."""
    meanwhile: list[Callable[[], object]] = []

    class Order(Saga, correlate_by="order_id", also_by="tracking", search_by="city", status_by="status"):
        order_id: str
        city: str = "Oslo"
        tracking: str | None = None
        status: Literal["placed", "paid"] = "placed"
        card: str | None = Field(default=None, repr=False)
        notes: list[str] = []

    @Order.starts(if_exists="ignore")
    def place(order: Order, order_id: str, tracking: str | None = None) -> None:
        order.tracking = tracking
        order.send(charge.s(order_id, token="t"), then=charged, otherwise=failed, within=timedelta(hours=1))
        order.schedule(remind, after=3_600, name="reminder")

    @Order.handles(by={"order_id": "order_id"})
    def pay(order: Order, order_id: str, receipt: str) -> None:
        for each in meanwhile:
            each()
        order.notes.append(receipt)
        order.card = receipt
        order.unschedule("reminder")
        order.send(charge.s(order_id) | ship.si(order_id), then=charged, otherwise=failed)
        order.send(mail.s("paid"))
        order.schedule(remind, every=timedelta(days=1), name="daily")
        order.gather([ship.s("a"), ship.s("b")], then=gathered)
        publish(Paid(order_id=order_id, pin="4711"))

    @Order.handles
    def note_paid(order: Order, paid: Paid) -> None: ...

    @Order.handles
    def charged(order: Order, answer: str) -> None:
        order.notes.append(answer)

    @Order.handles
    def failed(order: Order, failure: Failure) -> None:
        order.notes.append(f"{failure.kind} of {failure.task}")

    @Order.handles
    def gathered(order: Order, outcomes: Gathered[str]) -> None:
        order.notes += outcomes.values

    @Order.handles
    def remind(order: Order) -> None:
        order.notes.append("reminded")

    @Order.handles
    def track(order: Order, order_id: str, code: str) -> None:
        order.tracking = code

    @Order.handles
    def parcel(order: Order, tracking: str) -> None:
        order.notes.append(tracking)

    @Order.handles(when="paid", if_not="defer")
    def send_off(order: Order, order_id: str) -> None: ...

    @Order.handles(to="paid")
    def settle(order: Order, order_id: str) -> None: ...

    @Order.handles(if_missing="defer", defer_for=60)
    def wait(order: Order, order_id: str) -> None: ...

    @Order.handles(if_missing="raise")
    def insist(order: Order, order_id: str) -> None: ...

    @Order.handles
    def sorry(order: Order, order_id: str) -> None: ...

    @sorry.if_missing
    def no_order(missing: Missing, order_id: str) -> None:
        missing.send(mail.s(f"there is no {order_id}"))

    @Order.handles
    def direct(order: Order, order_id: str) -> None:
        mail.delay("by itself")
        track.delay(order_id, "by itself")

    @Order.handles(bind=True)
    def again(self: Any, order: Order, order_id: str) -> None:
        raise self.retry()

    @Order.handles
    def broken(order: Order, order_id: str) -> None:
        order.notes.append("lost")
        mail.delay("by itself")
        raise KeyError("\x1b[2Jno such thing")

    @Order.handles
    def ask_twice(order: Order, order_id: str) -> None:
        order.send(charge.s(order_id), then=charged, otherwise=failed, within=60, retry=Backoff(3, 10.0))

    @Order.handles
    def finish(order: Order, order_id: str) -> None:
        order.notes.append("done")
        order.reply("a secret")
        order.complete()

    @Order.handles(transaction=Session)
    def book(order: Order, session: Session, order_id: str) -> None: ...

    @aggregator(size=10, name="store_all")
    def store_all(batch: Batch[str]) -> None: ...

    class Cart(Saga, correlate_by="cart_id"):
        cart_id: str

    @Cart.starts
    def fill(cart: Cart, cart_id: str, order_id: str) -> None:
        cart.send(place.s(order_id), then=placed)

    @Cart.handles
    def placed(cart: Cart, answer: Annotated[str | None, Field(repr=False)]) -> None: ...

    names = {name: value for name, value in locals().items() if name != "names"}
    return SimpleNamespace(**names)


def send(app: Celery, task: str, **arguments: Any) -> None:
    """Send a message to a step."""
    app.send_task(task, kwargs=arguments, ignore_result=True)
