"""Objects of a subclass of what an annotation names are refused at the call, and in a state."""

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, chain

from celery_sagas import Batch, Message, Saga, aggregator
from celery_sagas.errors import InvalidMessage, InvalidState
from tests.apps import Worker


class Reading(Message):
    device: str


class Special(Reading):
    extra: int


SPECIAL = Special(device="d1", extra=7)


def test_call(app: Celery, worker: Worker) -> None:
    """Nothing is sent or buffered."""

    class Order(Saga, correlate_by="device"):
        device: str

    @Order.starts(by={"device": "reading.device"})
    def place(order: Order, reading: Reading) -> None: ...

    @aggregator(size=2)
    def collect(batch: Batch[Reading]) -> None: ...

    for call in (place, place.delay, place.s, place.si, collect.delay, collect.add):
        with pytest.raises(InvalidMessage, match=r"without extra: annotate it as Special \| Reading"):
            call(SPECIAL)
    assert (worker.waiting(), collect.read()) == ([], [])


#: What a step may do with the signatures of a step and of an aggregator that were made by their names.
BY_NAME: dict[str, Callable[[Any, Any, Any], object]] = {
    "send": lambda order, place, collect: order.send(place),
    "send later": lambda order, place, collect: order.send(place, after=5),
    "send a clone": lambda order, place, collect: order.send(order.told.s().clone(args=place.args)),
    "send a chain": lambda order, place, collect: order.send(chain(place, order.tell.si())),
    "send the next of a chain": lambda order, place, collect: order.send(chain(order.tell.si(), place)),
    "send an item": lambda order, place, collect: order.send(collect),
    "schedule": lambda order, place, collect: order.schedule(place, after=5),
    "gather": lambda order, place, collect: order.gather([place], then=order.tell.si()),
    "then": lambda order, place, collect: order.send(order.tell.s(), then=place),
    "then, with the answer": lambda order, place, collect: order.send(order.tell.s(), then=place.set(immutable=False)),
    "otherwise": lambda order, place, collect: order.send(order.tell.s(), otherwise=place),
}


@pytest.mark.parametrize("way", BY_NAME)
def test_signature_by_name(app: Celery, worker: Worker, way: str) -> None:
    """In a step, such a signature is encoded by the annotations of what it names."""

    class Order(Saga, correlate_by="device"):
        device: str

    @Order.starts
    def begin(order: Order, device: str) -> None:
        place = app.signature("order.told", args=(SPECIAL,), immutable=True)
        BY_NAME[way](order, place, app.signature(collect.name, args=(SPECIAL,)))

    @Order.handles(by={"device": "reading.device"})
    def told(order: Order, reading: Reading, more: Reading | None = None) -> None: ...

    @Order.handles
    def tell(order: Order) -> None: ...

    @aggregator(size=2)
    def collect(batch: Batch[Reading]) -> None: ...

    Order.told, Order.tell = told, tell  # type: ignore[attr-defined]
    with pytest.raises(InvalidMessage, match=r"without extra: annotate it as Special \| Reading"):
        begin("d1")
    assert worker.waiting() == []


def test_union_by_name(app: Celery, worker: Worker) -> None:
    seen: list[object] = []

    class Order(Saga, correlate_by="device"):
        device: str

    @Order.starts
    def begin(order: Order, device: str) -> None:
        order.send(app.signature("order.told", kwargs={"reading": SPECIAL}), then="order.told_later")
        order.send(told.s(SPECIAL), then=app.signature("order.told_later", kwargs={"reading": SPECIAL}))

    @Order.handles
    def told(order: Order, reading: Special | Reading) -> Any:
        seen.append(reading)

    @Order.handles
    def told_later(order: Order, answer: None, reading: Special | Reading | None = None) -> None:
        seen.append(reading)

    begin.delay("d1")
    worker.run()

    assert sorted(map(str, seen)) == sorted(map(str, [SPECIAL, SPECIAL, SPECIAL, None]))


def test_union(app: Celery, worker: Worker) -> None:
    seen: list[object] = []

    class Order(Saga, correlate_by="device"):
        device: str

    @Order.starts(by={"device": "reading.device"})
    def place(order: Order, reading: Special | Reading) -> None:
        seen.append(reading)

    place.delay(SPECIAL)
    place.delay(Reading(device="d1"))
    worker.run()

    assert seen == [SPECIAL, Reading(device="d1")]


def test_state(app: Celery) -> None:
    class Order(Saga, correlate_by="order_id"):
        order_id: str
        reading: Reading | None = None

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.reading = SPECIAL

    with pytest.raises(InvalidState, match=r"a Special would come back as Reading: annotate it as Special \| Reading"):
        place("42")
