"""The same three accidents of the shop as it is after."""

from datetime import timedelta

from after import Fulfilment, check_out, payment_received
from shop import Base, Order, engine
from sqlalchemy.orm import Session
from workers import DEADLINE_S, Worker, note, noted, until


def order(order_id: int) -> Order:
    with Session(engine) as session:
        return session.get_one(Order, order_id)


def check_out_now(order_id: int, time_to_pay: timedelta) -> None:
    with Session(engine) as session, session.begin():
        check_out(session, order_id, ["lamp"], time_to_pay)


def main() -> None:
    Base.metadata.create_all(engine)

    # 1. The worker is killed between its commit and its next message.
    with Worker("after", "-I", "accident") as worker:
        check_out_now(1, timedelta(days=1))
        Fulfilment.wait(1, until=lambda fulfilment: True, timeout=DEADLINE_S)
        payment_received.delay(1, "r-1")
        until(lambda: worker.is_killed)
    with Worker("after"):
        # 2. A second worker starts while a reminder waits.
        check_out_now(2, timedelta(seconds=4))
        with Worker("after"):
            until(lambda: noted("mail of 2: please pay") > 0)

            # 3. The order is overdue. The payment comes while the warehouse is asked.
            note("held: release 3")
            check_out_now(3, timedelta(0))
            until(lambda: noted("release 3") > 0)
            payment_received.delay(3, "r-3")
            until(lambda: noted("refund r-3") > 0)
            note("answered: release 3")
            until(lambda: order(1).status == "shipped" and order(2).status == "cancelled")
    print(f"order 1 is {order(1).status}; parcels: {noted('parcel of 1')}")
    print(f"order 2 is {order(2).status}; reminders: {noted('mail of 2: please pay')}")
    print(f"order 3 is {order(3).status}; refunds: {noted('refund r-3')}; parcels: {noted('parcel of 3')}")


if __name__ == "__main__":
    main()
