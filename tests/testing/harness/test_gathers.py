"""Gathers in virtual time: those that end early, with processes that die."""

from datetime import timedelta
from typing import Any, get_args

import pytest
from celery import Celery

from celery_sagas import Gathered, Saga
from celery_sagas.testing.harness.crashes import CrashPoint
from celery_sagas.testing.harness.harness import SagaHarness
from tests.apps import app, definitions, new_app

__all__ = ["app", "definitions", "new_app"]

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
MEMBERS = 5


@pytest.fixture
def ride(app: Celery) -> Any:
    """A ride that asks for a driver."""

    def call(position: int) -> int:
        return position

    ask = app.task(name="ask", acks_late=True)(call)

    class Ride(Saga, correlate_by="ride_id"):
        ride_id: str
        seen: list[list[int]] = []

    @Ride.starts
    def begin(ride: Ride, ride_id: str) -> None:
        members = [ask.s(position) for position in range(MEMBERS)]
        ride.gather(members, then=found, otherwise=found, at_least=2, early=True, within=HOUR)

    @Ride.handles
    def found(ride: Ride, drivers: Gathered[int]) -> None:
        ride.seen.append(drivers.values)

    Ride.begin = begin  # type: ignore[attr-defined]
    return Ride


@pytest.fixture
def harness(app: Celery) -> Any:
    with SagaHarness(app) as harness:
        yield harness


def test_members_that_have_not_begun_never_do(harness: SagaHarness, ride: Any) -> None:
    harness.hold("ask")
    harness.send(ride.begin, "1")
    harness.run()
    first, second, *others = harness.assert_sent("ask", times=MEMBERS)
    harness.deliver(second)
    harness.run()
    harness.assert_state(ride, "1", seen=[])
    harness.deliver(first)
    harness.run()
    harness.assert_state(ride, "1", seen=[[0, 1]])
    harness.restore("ask")
    harness.run()

    assert len([line for line in harness.timeline().splitlines() if "expired" in line]) == len(others)
    harness.assert_state(ride, "1", seen=[[0, 1]])
    harness.assert_done()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("crash", get_args(CrashPoint))
def test_process_dies(harness: SagaHarness, ride: Any, crash: CrashPoint, number: int) -> None:
    """While it handles one of the two members that are enough, or the step."""
    harness.hold("ask")
    harness.hold("ride.found")
    harness.send(ride.begin, "1")
    harness.run()
    asked = harness.assert_sent("ask", times=MEMBERS)[:2]
    for position, message in enumerate(asked):
        harness.deliver(message, crash=crash if position == number else None)
        harness.advance(MINUTE)
    while any(each in asked for each in harness.pending):
        harness.deliver(next(each for each in harness.pending if each in asked))
    harness.advance(5 * MINUTE)
    harness.deliver("ride.found", crash=crash if number == 2 else None)
    harness.restore("ride.found")
    harness.restore("ask")
    harness.advance(2 * HOUR)

    (seen,) = harness.state(ride, "1").seen
    assert seen[:2] == [0, 1]
    assert harness.dead == []
