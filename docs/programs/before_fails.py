"""Three accidents of the shop as it is before."""

import time
from datetime import timedelta

from before import cancel_overdue, check_out, payment_received
from shop import Base, Order, engine
from sqlalchemy.orm import Session
from workers import VISIBILITY_S, Worker, note, noted, until


def order(order_id: int) -> Order:
    with Session(engine) as session:
        return session.get_one(Order, order_id)


def main() -> None:
    Base.metadata.create_all(engine)

    # 1. The worker is killed between its commit and its next message. Another one gets the message again.
    with Worker("before", "-I", "accident") as worker:
        check_out(1, ["lamp"], timedelta(days=1))
        payment_received.delay(1, "r-1")
        until(lambda: worker.is_killed)
    time.sleep(VISIBILITY_S)
    with Worker("before") as worker:
        until(lambda: worker.received("shop.payment_received") == worker.received("shop.remind") == 1)

        # 2. A reminder waits in this worker for longer than the broker's visibility timeout, and a second worker starts.
        check_out(2, ["lamp"], timedelta(seconds=4 + 6 * worker.start_s))
        until(lambda: worker.received("shop.remind") == 2)
        time.sleep(VISIBILITY_S)
        with Worker("before"):
            until(lambda: noted("mail of 2: please pay") > 1)

            # 3. Beat's job reads that the order is overdue, and asks the warehouse. The payment comes meanwhile.
            note("held: release 3")
            check_out(3, ["lamp"], timedelta(0))
            cancel_overdue.delay()
            until(lambda: noted("release 3") > 0)
            payment_received.delay(3, "r-3")
            until(lambda: order(3).status == "shipped")
            note("answered: release 3")
            until(lambda: order(3).status == "cancelled")
    print(f"order 1 is {order(1).status}; parcels: {noted('parcel of 1')}")
    print(f"order 2 is {order(2).status}; reminders: {noted('mail of 2: please pay')}")
    print(f"order 3 is {order(3).status}; paid with {order(3).receipt}; parcels: {noted('parcel of 3')}")


if __name__ == "__main__":
    main()
