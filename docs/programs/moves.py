"""The shop moves while orders are open: one is stuck, one waits for its payment, one is overdue, and a new one comes."""

from datetime import UTC, datetime, timedelta

import moving
from after import payment_received
from shop import Base, Order, app, engine
from sqlalchemy import select
from sqlalchemy.orm import Session
from workers import Worker, noted, until


def statuses() -> dict[int, str]:
    with Session(engine) as session:
        return {order.id: order.status for order in session.scalars(select(Order).order_by(Order.id))}


def check_out_as_before(order_id: int, time_to_pay: timedelta) -> None:
    """Do what ``before.check_out`` does: no process imports both modules, since they have tasks of one name."""
    now = datetime.now(UTC)
    with Session(engine) as session, session.begin():
        session.add(Order(id=order_id, items=["lamp"], remind_at=now + time_to_pay / 2, pay_by=now + time_to_pay))
    app.send_task("shop.remind", [order_id], eta=now + time_to_pay / 2)


def main() -> None:
    Base.metadata.create_all(engine)
    with Worker("before", "-I", "accident") as worker:
        check_out_as_before(1, timedelta(days=1))
        check_out_as_before(2, timedelta(days=1))
        check_out_as_before(3, timedelta(0))
        app.send_task("shop.payment_received", [1, "r-1"])
        until(lambda: worker.is_killed)
    print("before:", statuses())
    with Worker("moving"):
        moving.cancel_overdue.delay()  # as beat does
        app.send_task("shop.payment_received", [2, "r-2"])  # as a web page with the old code does
        with Session(engine) as session, session.begin():
            moving.check_out(session, 4, ["lamp"], timedelta(days=1))
        payment_received.delay(4, "r-4")
        until(lambda: set(statuses().values()) == {"shipped", "cancelled"})
        print("after: ", statuses())
    print("parcels:", [noted(f"parcel of {number}") for number in statuses()], "without a saga:", moving.bring_in())


if __name__ == "__main__":
    main()
