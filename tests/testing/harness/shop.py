"""A shop for tests of the harness, made anew for each: an order is charged, shipped, and reminded of."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from celery import Celery

from celery_sagas import Batch, Failure, Gathered, Message, Saga, aggregator, publish

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def open_shop(app: Celery) -> Any:
    """Define the shop's sagas and tasks; return them by their names."""

    class Order(Saga, correlate_by="order_id", also_by="tracking"):
        order_id: str
        receipt: str | None = None
        problem: str = ""
        tracking: str | None = None
        handled_at: list[str] = []

    class Paid(Message):
        order_id: str

    class Invoice(Saga, correlate_by="order_id"):
        order_id: str
        sent: int = 0

    class Bill(Saga, correlate_by="order_id"):
        order_id: str

    class Reading(Message):
        meter: str
        kwh: float

    @Order.starts(if_exists="ignore")
    def place(order: Order, order_id: str) -> None:
        order.handled_at.append(order.saga.now.isoformat())
        order.send(charge.s(order_id), then=charged, otherwise=not_charged, within=HOUR)

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.receipt = receipt
        publish(Paid(order_id=order.order_id))
        order.schedule(remind, after=5 * DAY, name="reminder")

    @Order.handles
    def not_charged(order: Order, failure: Failure) -> None:
        order.problem = f"{failure.kind} {failure.error}".strip()

    @Order.handles
    def remind(order: Order) -> None:
        order.handled_at.append(order.saga.now.isoformat())
        order.send(mail.s(order.order_id))
        order.complete()

    @Order.handles(if_missing="defer", defer_for=6.0)
    def cancel(order: Order, order_id: str) -> None:
        order.complete()

    @Order.handles(by="tracking", if_missing="raise")
    def delivered(order: Order, tracking: str) -> None:
        order.complete()

    @Order.handles
    def compare(order: Order, order_id: str) -> None:
        order.gather([quote.s(name) for name in ("a", "b")], then=compared, within=HOUR, otherwise=compared)

    @Order.handles
    def compared(order: Order, quotes: Gathered[int]) -> None:
        order.problem = f"{quotes.answers} {sorted(quotes.failures)} {quotes.silent}"

    @Order.handles
    def bill(order: Order, order_id: str) -> None:
        order.send(ask_invoice.s(order_id), then=billed)

    @Order.handles
    def billed(order: Order, number: str) -> None:
        order.problem = number

    @Bill.starts
    def ask_invoice(bill: Bill, order_id: str) -> None:
        bill.schedule(answer_invoice, after=DAY)

    @Bill.handles
    def answer_invoice(bill: Bill) -> None:
        bill.reply("i-" + bill.order_id)
        bill.complete()

    @Invoice.starts
    def on_paid(invoice: Invoice, paid: Paid) -> None:
        invoice.sent += 1

    @aggregator(name="readings", size=3, within=timedelta(seconds=5), group_by="meter")
    def readings(batch: Batch[Reading]) -> None:
        for reading in batch:
            if reading.kwh < 0:
                batch.reject(reading, "below zero")
        flushed.append([reading.kwh for reading in batch])

    @aggregator(name="bills", size=2, group_by="order_id")
    def bills(batch: Batch[Paid]) -> None:
        for paid in batch:
            batch.send(on_paid.s(paid))
        batch.send(mail.s(batch.group), after=HOUR)

    flushed: list[list[float]] = []
    ran: list[str] = []

    @app.task(acks_late=True)
    def charge(order_id: str) -> str:
        ran.append(f"charge {order_id}")
        return "r-" + order_id

    @app.task
    def mail(order_id: str) -> None:
        ran.append(f"mail {order_id}")

    @app.task(acks_late=True)
    def quote(name: str) -> int:
        return ord(name)

    @app.task(bind=True, acks_late=True, max_retries=2, default_retry_delay=60)
    def flaky(self: Any) -> str:
        ran.append("flaky")
        raise self.retry(exc=ValueError("not yet"))

    return SimpleNamespace(**{name: value for name, value in locals().items() if name != "app"}, app=app)
