"""Aggregators as type checkers see them, with and without celery-types. Checked, never run; see ``sagas.py``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypedDict, assert_type
from uuid import UUID

from celery_sagas import Aggregator, Batch, BufferedItem, Message, Saga, aggregator


class Reading(Message):
    device_id: str
    celsius: float = 20.0


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int


class Row(TypedDict):
    x: int


class Order(Saga, correlate_by="order_id"):
    order_id: str


@Order.starts
def begin(order: Order, order_id: str) -> None: ...


@aggregator(size=100, within=timedelta(seconds=5), group_by="device_id")
def store(batch: Batch[Reading]) -> None:
    for reading in batch:
        assert_type(reading, Reading)
        if reading.celsius > 1000:
            batch.reject(reading, "sensor fault")
    assert_type(batch[0], Reading)
    assert_type(batch[1:], Sequence[Reading])
    assert_type(len(batch), int)
    assert_type(batch.ids, tuple[str, ...])
    assert_type(batch.group, str)
    assert_type(batch.unresolved_count, int)
    assert_type(batch.rejected, dict[int, str])
    assert_type(batch.send(begin.s("42"), after=timedelta(hours=1)), str)
    batch.send(begin.si("42"), after=1.5)
    batch.send(numbers.s(5))
    batch.send(begin)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    batch.send("begin")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    batch.send(begin.s("42"), after="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    batch.send(begin.s("42"), then=begin)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@aggregator(
    size=100,
    within=5,
    idle=0.5,
    group_by=("device_id", "celsius"),
    dedupe_for=None,
    max_buffered=1000,
    correlate_by="device_id",
    name="shop.store",
    bind=True,
    queue="slow",
    max_retries=3,
)
def bound(self: Any, batch: Batch[Reading]) -> int:
    raise self.retry()


@aggregator(idle=1, group_by=lambda point: point.x, dedupe_for=timedelta(hours=1))
def points(batch: Batch[Point]) -> None: ...


@aggregator(size=1)
def rows(batch: Batch[Row]) -> None: ...


@aggregator(size=1)
def numbers(batch: Batch[int]) -> None: ...


@aggregator(size=1)
def anything(batch: Batch[Any]) -> None: ...


READING = Reading(device_id="d1")


def types() -> None:
    assert_type(store, Aggregator[Reading])
    assert_type(bound, Aggregator[Reading])
    assert_type(points, Aggregator[Point])
    assert_type(numbers, Aggregator[int])
    assert_type(store.name, str)
    assert_type(store.max_retries, Any)


def messages(order: Order) -> None:
    store.delay(READING)
    store.delay(device_id="d1", celsius=20.5)
    store.apply_async((READING,), countdown=3, queue="slow", headers={"saga_message_id": "mqtt-7"})
    store.apply_async(kwargs={"device_id": "d1"})
    store.s(READING)
    store.s()
    store.si(device_id="d1")
    bound.delay(READING)
    points.delay(Point(3))
    rows.delay({"x": 3})
    numbers.delay(5)
    anything.delay({"a": [1]})
    assert_type(order.send(store.s(READING)), str)


def wrong_messages() -> None:
    store.delay(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    store.delay(Point(3))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    store.delay(READING, READING)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    store.s("d1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    store.si("d1")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    store.apply_async(READING)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    rows.delay({"y": 3})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    numbers.delay("5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def buffers(key: UUID) -> None:
    assert_type(store.add(READING), str)
    assert_type(store.add(READING, id="mqtt-7"), str)
    assert_type(store.add_many([READING]), list[str])
    assert_type(numbers.add_many(range(3), ids=("a", "b", "c")), list[str])
    assert_type(store.count(), int)
    assert_type(store.count("d1"), int)
    assert_type(store.read(key, limit=3), list[Reading])
    assert_type(numbers.read(), list[int])
    assert_type(store.groups(), Iterator[str])
    assert_type(store.items(("d1", 5)), Iterator[BufferedItem[Reading]])
    assert_type([each.item for each in numbers.items()], list[int])
    assert_type(next(store.items()).buffered_at, datetime)
    assert_type(store.clear_all(), int)
    assert_type(store.remove_correlated(42), int)
    assert_type(store.remove_correlated(key, group="d1"), int)
    assert_type(store.clear(Colour.RED), int)
    assert_type(store.flush(("d1", 5)), int)
    store.remove("mqtt-7", group="d1")
    store.add(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.add(READING, "mqtt-7")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    store.add(READING, id=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.add_many(READING)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.add_many([5])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    store.remove_correlated(("a", "b"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.items(1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.clear_all("d1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    store.read(1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    store.remove()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def batches() -> None:
    batch = Batch([READING, READING], group="d1", reason="age")
    assert_type(batch, Batch[Reading])
    store.handler(batch)
    batch.reject(READING)
    batch.reject("d1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    batch.reject(READING, "sensor fault")
    batch.reject(READING, ValueError("sensor fault"))
    Batch([1], reason="late")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@aggregator(size="2")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wrong_size(batch: Batch[Reading]) -> None: ...


@aggregator(size=2, group_by=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wrong_group(batch: Batch[Reading]) -> None: ...


@aggregator(size=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def no_batch(readings: list[Reading]) -> None: ...


@aggregator(size=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def too_many(self: Any, batch: Batch[Reading]) -> None: ...


@aggregator(size=2, bind=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def too_few(batch: Batch[Reading]) -> None: ...


@aggregator(size=2, correlate_by=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def wrong_correlation(batch: Batch[Reading]) -> None: ...
