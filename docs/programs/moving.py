"""The time between: each order gets a saga, and the old tasks leave alone the orders that have one."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import after
from after import Fulfilment
from shop import Base, Order, app, call_carrier, engine, send_mail
from sqlalchemy import ForeignKey, exists, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from celery_sagas import send


class Moved(Base):
    """The orders that have a saga. This table goes with the old tasks."""

    __tablename__ = "moved"
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)


# Orders that are there already


@Fulfilment.starts(if_exists="ignore")
def adopt(
    fulfilment: Fulfilment,
    order_id: int,
    items: list[str],
    status: str,
    receipt: str | None,
    remind_at: datetime,
    pay_by: datetime,
) -> None:
    """Go on where the old tasks stand."""
    fulfilment.items, fulfilment.status, fulfilment.receipt = items, status, receipt
    if status == "placed":
        fulfilment.wait_for_payment(remind_at, pay_by)
    else:
        fulfilment.reserve_items()


def give_sagas(session: Session, orders: Iterable[Order]) -> None:
    """Give sagas to orders whose rows are locked."""
    for order in orders:
        session.add(Moved(order_id=order.id))
        send(adopt.si(order.id, order.items, order.status, order.receipt, order.remind_at, order.pay_by), using=session)


def bring_in(count: int = 100) -> int:
    """Give sagas to some of the open orders that have none; return to how many."""
    has_none = ~exists().where(Moved.order_id == Order.id)
    rows = select(Order).where(Order.status.in_(["placed", "paid"]), has_none).limit(count).with_for_update(skip_locked=True)
    with Session(engine) as session, session.begin():
        give_sagas(session, orders := session.scalars(rows).all())
        return len(orders)


# New orders


def check_out(session: Session, order_id: int, items: list[str], time_to_pay: timedelta) -> None:
    after.check_out(session, order_id, items, time_to_pay)
    session.flush()
    session.add(Moved(order_id=order_id))


# The old tasks, under their old names: for messages on their way, and for web pages that still run the old code


@app.task(name="shop.cancel_overdue")
def cancel_overdue() -> None:
    """Bring everything in: beat still calls this, and a saga cancels its order by itself."""
    while bring_in():
        pass


@app.task(name="shop.payment_received", acks_late=True)
def payment_received(order_id: int, receipt: str) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id, with_for_update=True)
        if not has_saga(session, order):
            give_sagas(session, [order])
        send(after.payment_received.si(order_id, receipt), using=session, id=f"payment {receipt}")


@app.task(name="shop.remind", acks_late=True)
def remind(order_id: int) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id, with_for_update=True)
        if not has_saga(session, order) and order.status == "placed":
            send_mail(order_id, "please pay")


@app.task(name="shop.ship", acks_late=True)
def ship(order_id: int) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id, with_for_update=True)
        if not has_saga(session, order):
            call_carrier(order_id)
            order.status = "shipped"


def has_saga(session: Session, order: Order) -> bool:
    return session.get(Moved, order.id) is not None
