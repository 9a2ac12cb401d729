"""Objects of a subclass of what an annotation names are refused at the call, and in a state."""

import pytest
from celery import Celery

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
