"""The testing kit as type checkers see it, with and without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import datetime, timedelta
from typing import assert_type

from celery_sagas import Batch, Message, Outcome, Saga, aggregator
from celery_sagas.testing import SagaHarness, ScheduledTimeout, SentMessage
from celery_sagas.testing.exploration import explore


class Order(Saga, correlate_by="order_id"):
    order_id: str


class Reading(Message):
    meter: str


@Order.starts
def place(order: Order, order_id: str, total: int = 0) -> None: ...


@aggregator(size=10)
def store(batch: Batch[Reading]) -> None: ...


def test_order(saga_harness: SagaHarness) -> None:
    assert_type(saga_harness.send(place, "42", total=3), SentMessage)
    assert_type(saga_harness.send(place, order_id="42"), SentMessage)
    saga_harness.send(place, 42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saga_harness.send(place)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    saga_harness.send(place, "42", sum=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    saga_harness.send(store, Reading(meter="m"))
    saga_harness.send(store, "m")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    assert_type(saga_harness.deliver(), SentMessage)
    saga_harness.deliver(place, crash="after_commit")
    saga_harness.deliver("order.place", fail=ValueError)
    saga_harness.deliver(saga_harness.pending[0], silent=True)
    saga_harness.deliver(crash="sometime")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(saga_harness.run(), int)
    assert_type(saga_harness.advance(timedelta(days=1)), int)
    saga_harness.advance(3.5)
    saga_harness.advance("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saga_harness.wait()
    saga_harness.wait(timedelta(hours=1))

    assert_type(saga_harness.state(Order, "42"), Order | None)
    assert_type(saga_harness.state(Order, order_id="42"), Order | None)
    assert_type(saga_harness.journal(Order, "42"), list[Outcome])
    assert_type(saga_harness.assert_state(Order, "42", order_id="42"), Order)
    assert_type(saga_harness.assert_completed(Order, "42", by=place), Outcome[Order])
    assert_type(saga_harness.assert_sent(place, "42", times=1), list[SentMessage])
    assert_type(saga_harness.timeouts, list[ScheduledTimeout])
    assert_type(saga_harness.now, datetime)

    saga_harness.answer(place, 3)
    saga_harness.fail("billing.book", ValueError("no"))
    saga_harness.fail("billing.book", "no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saga_harness.silence(place)
    assert_type(saga_harness.progress(saga_harness.sent[-1], {"done": 3}), SentMessage)
    saga_harness.progress(place, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def scenario(harness: SagaHarness) -> None: ...
def invariant(harness: SagaHarness) -> None: ...


def test_explored() -> None:
    explore(scenario, invariant, examples=100, faults=["repeat", "crash"], lasts=timedelta(days=1))
    explore(scenario, invariant, faults=["fire"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    explore(3, invariant)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
