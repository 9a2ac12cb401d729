"""The same shop with a saga: it decides, the table shows, and tasks do the work."""

from datetime import UTC, datetime, timedelta
from typing import Literal

import shop
from shop import DATABASE, Order, app, reserve
from sqlalchemy.orm import Session

from celery_sagas import Gathered, Saga, send

app.conf.saga_backend = DATABASE  # where the orders are
app.conf.saga_relay_interval, app.conf.saga_dispatch_grace = 0.2, 2  # for the impatient: the defaults are longer


class Fulfilment(Saga, correlate_by="order_id", status_by="status"):
    """What becomes of an order."""

    order_id: int
    items: list[str] = []
    status: Literal["placed", "paid", "shipped", "cancelled"] = "placed"
    receipt: str | None = None

    def become(self, status: Literal["paid", "shipped", "cancelled"], session: Session) -> None:
        """Take a status, and show it in the table, in one commit."""
        self.status = status
        order = session.get_one(Order, self.order_id)
        order.status, order.receipt = status, self.receipt

    def wait_for_payment(self, remind_at: datetime, pay_by: datetime) -> None:
        if remind_at > self.saga.now:
            self.schedule(reminder, at=remind_at, name="reminder")
        self.schedule(overdue, at=pay_by, name="overdue")

    def reserve_items(self) -> None:
        members = [reserve.s(self.order_id, item) for item in self.items]
        self.gather(members, then=reserved, otherwise=not_reserved, within=timedelta(hours=1))


def check_out(session: Session, order_id: int, items: list[str], time_to_pay: timedelta) -> None:
    """Place an order in the transaction of the web page."""
    now = datetime.now(UTC)
    remind_at, pay_by = now + time_to_pay / 2, now + time_to_pay
    session.add(Order(id=order_id, items=items, remind_at=remind_at, pay_by=pay_by))
    send(place.si(order_id, items, remind_at, pay_by), using=session)


@Fulfilment.starts(if_exists="ignore")
def place(fulfilment: Fulfilment, order_id: int, items: list[str], remind_at: datetime, pay_by: datetime) -> None:
    fulfilment.items = items
    fulfilment.wait_for_payment(remind_at, pay_by)


@Fulfilment.handles(  # sent by the bank's webhook, which may be faster than the order itself
    when={"placed", "cancelled"}, if_not="ignore", if_missing="defer", defer_for=timedelta(minutes=5), transaction=Session
)
def payment_received(fulfilment: Fulfilment, session: Session, order_id: int, receipt: str) -> None:
    if fulfilment.status == "cancelled":
        fulfilment.send(refund.si(receipt))
        return
    fulfilment.unschedule("reminder")
    fulfilment.unschedule("overdue")
    fulfilment.receipt = receipt
    fulfilment.become("paid", session)
    fulfilment.reserve_items()


@Fulfilment.handles
def reserved(fulfilment: Fulfilment, items: Gathered[str]) -> None:
    fulfilment.send(call_carrier.si(fulfilment.order_id), then=shipped)


@Fulfilment.handles(transaction=Session)
def shipped(fulfilment: Fulfilment, session: Session, parcel: object) -> None:
    fulfilment.become("shipped", session)
    fulfilment.complete()


@Fulfilment.handles(transaction=Session)
def not_reserved(fulfilment: Fulfilment, session: Session, items: Gathered[str]) -> None:
    fulfilment.send(refund.si(fulfilment.receipt))
    fulfilment.become("cancelled", session)
    fulfilment.send(release_stock.si(fulfilment.order_id))
    fulfilment.complete()


@Fulfilment.handles(when="placed", if_not="ignore")
def reminder(fulfilment: Fulfilment) -> None:
    fulfilment.send(send_mail.si(fulfilment.order_id, "please pay"))


@Fulfilment.handles(when="placed", if_not="ignore", transaction=Session)
def overdue(fulfilment: Fulfilment, session: Session) -> None:
    fulfilment.become("cancelled", session)
    fulfilment.send(release_stock.si(fulfilment.order_id))
    fulfilment.schedule(forget, after=timedelta(days=30))  # until then a payment that comes late is sent back


@Fulfilment.handles
def forget(fulfilment: Fulfilment) -> None:
    fulfilment.complete()


# The work: the services of before, each as a task.
send_mail = app.task(shop.send_mail, name="shop.send_mail", acks_late=True)
release_stock = app.task(shop.release_stock, name="shop.release_stock", acks_late=True)
refund = app.task(shop.refund, name="shop.refund", acks_late=True)
call_carrier = app.task(shop.call_carrier, name="shop.call_carrier", acks_late=True)
