"""The shop as it is often written: a status column, a job of beat's, an ETA, and a chord."""

from datetime import UTC, datetime, timedelta

from celery import chord
from shop import Order, app, call_carrier, engine, release_stock, reserve, send_mail
from sqlalchemy import select
from sqlalchemy.orm import Session

app.conf.beat_schedule = {"overdue": {"task": "shop.cancel_overdue", "schedule": timedelta(minutes=1)}}


def check_out(order_id: int, items: list[str], time_to_pay: timedelta) -> None:
    """Place an order: called by the web page."""
    now = datetime.now(UTC)
    remind_at, pay_by = now + time_to_pay / 2, now + time_to_pay
    with Session(engine) as session, session.begin():
        session.add(Order(id=order_id, items=items, remind_at=remind_at, pay_by=pay_by))
    remind.apply_async([order_id], eta=remind_at)


@app.task(name="shop.payment_received", acks_late=True)  # sent by the bank's webhook
def payment_received(order_id: int, receipt: str) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id)
        if order.status != "placed":
            return  # this message has come twice
        order.status, order.receipt = "paid", receipt
        items = order.items
    chord([reserve.s(order_id, item) for item in items], ship.si(order_id)).delay()


@app.task(name="shop.ship", acks_late=True)
def ship(order_id: int) -> None:
    call_carrier(order_id)
    with Session(engine) as session, session.begin():
        session.get_one(Order, order_id).status = "shipped"


@app.task(name="shop.remind", acks_late=True)
def remind(order_id: int) -> None:
    with Session(engine) as session:
        if session.get_one(Order, order_id).status == "placed":
            send_mail(order_id, "please pay")


@app.task(name="shop.cancel_overdue")
def cancel_overdue() -> None:
    overdue = select(Order).where(Order.status == "placed", Order.pay_by < datetime.now(UTC))
    with Session(engine) as session, session.begin():
        for order in session.scalars(overdue).all():
            release_stock(order.id)
            order.status = "cancelled"
