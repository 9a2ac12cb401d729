"""A worker is killed while it runs the second step of a saga of the package celery-saga."""

import os

from celery import Celery
from celery_saga import Saga, saga_step, set_default_backend
from celery_saga.backends import RedisSagaBackend
from workers import BROKER, Worker, note, noted, settings, until

app = Celery("celery_saga_killed")
app.conf.update(settings(result_backend="cache+memory://", task_acks_late="ACKS_LATE" in os.environ))
app.set_default()
set_default_backend(RedisSagaBackend(url=BROKER, ttl=60))


@saga_step(compensate="refund")
@app.task(name="charge")
def charge(**data: object) -> dict[str, object]:
    note("charged")
    return {"receipt": "r-1"}


@saga_step(compensate="give_back")
@app.task(name="reserve")
def reserve(**data: object) -> None:
    note("began to reserve")
    until(lambda: noted("began to reserve") > 1)  # the first run never ends


@app.task(name="refund")
def refund(receipt: object) -> None:
    note("refunded")


@app.task(name="give_back")
def give_back(reserved: object) -> None:
    note("given back")


def main() -> None:
    with Worker("celery_saga_killed") as worker:
        order = Saga("order").add_step(charge).add_step(reserve).run(order_id="1")
        until(lambda: noted("began to reserve") == 1)
        worker.kill()
    with Worker("celery_saga_killed"):
        try:
            order.get(timeout=5)
        except Exception as exc:
            print(type(exc).__name__)
    print(f"status: {order.status.value}, charged: {noted('charged')}, refunded: {noted('refunded')}")


if __name__ == "__main__":
    main()
