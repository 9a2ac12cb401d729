"""A reminder with a countdown that is longer than the broker's visibility timeout, and one that waits with a saga."""

import time
from datetime import timedelta

from celery import Celery
from workers import FOLDER, VISIBILITY_S, Worker, note, noted, settings, until

from celery_sagas import Saga

app = Celery("eta")
app.conf.update(settings(saga_backend=f"sqlite:///{FOLDER}/sagas.sqlite3", saga_relay_interval=0.1))


class Order(Saga, correlate_by="order_id"):
    order_id: str


@Order.starts
def place(order: Order, order_id: str, seconds: float) -> None:
    order.schedule(overdue, after=timedelta(seconds=seconds))


@Order.handles
def overdue(order: Order) -> None:
    order.send(remind.si("by the saga"))
    order.complete()


@app.task(acks_late=True)
def remind(how: str) -> None:
    note(f"reminded {how}")


def main() -> None:
    with Worker("eta") as worker:
        seconds = 2 + 3 * worker.start_s  # by then a second worker has started
        remind.apply_async(["by countdown"], countdown=seconds)
        place.delay(order_id="1", seconds=seconds)
        until(lambda: worker.received("eta.remind") > 0)  # this worker has the message now, and waits
        time.sleep(VISIBILITY_S)
        with Worker("eta"):
            until(lambda: noted("reminded by the saga") > 0 and noted("reminded by countdown") > 1)
    for how in ("by countdown", "by the saga"):
        print(f"reminded {how}: {noted(f'reminded {how}')}")


if __name__ == "__main__":
    main()
