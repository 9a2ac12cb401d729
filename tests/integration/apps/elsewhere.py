"""Orders that live in a backend of their own, and their parcels, which live in that of the others."""

from datetime import timedelta

from deployed import make_app

from celery_sagas import Gathered, Saga

app = make_app()


class Order(Saga, correlate_by="order_id", backend="orders"):
    order_id: str
    weights: list[int] = []


class Parcel(Saga, correlate_by="order_id"):
    order_id: str


@Order.starts
def place(order: Order, order_id: str) -> None:
    order.send(pack.si(order_id), then=packed)


@Order.handles
def packed(order: Order, answer: str) -> None:
    assert answer == order.order_id
    order.gather([weigh.si(number) for number in range(3)], then=weighed)


@Order.handles
def weighed(order: Order, weights: Gathered[int]) -> None:
    order.weights = sorted(weights.answers.values())
    order.schedule(end, after=timedelta(seconds=0.5))


@Order.handles
def end(order: Order) -> None:
    assert order.weights == [0, 1, 2]
    order.complete()


@Parcel.starts
def pack(parcel: Parcel, order_id: str) -> None:
    parcel.reply(order_id)
    parcel.complete()


@app.task(acks_late=True, reject_on_worker_lost=True)
def weigh(number: int) -> int:
    return number
