"""Gathers in virtual time: those that end early, with processes that die."""

from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from celery import Celery

from celery_sagas import Gathered, Saga
from celery_sagas.engine.history import history_of
from celery_sagas.testing.harness.crashes import CrashPoint
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.testing.harness.timeline import ScenarioError
from celery_sagas.worker.runtime import runtime_of
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

    class Ride(Saga, correlate_by="ride_id", history="messages"):
        ride_id: str
        seen: list[list[int]] = []
        looked: list[list[int]] = []

    @Ride.starts
    def begin(ride: Ride, ride_id: str) -> None:
        members = [ask.s(position) for position in range(MEMBERS)]
        ride.gather(members, then=found, otherwise=found, at_least=2, early=True, within=HOUR)

    @Ride.handles
    def found(ride: Ride, drivers: Gathered[int]) -> None:
        ride.seen.append(drivers.values)

    @Ride.handles
    def look(ride: Ride, ride_id: str) -> None:
        ride.looked += [list(gather.answered) for gather in ride.saga.gathers.values()]

    @Ride.handles
    def count(ride: Ride, ride_id: str) -> None:
        ride.looked.append([len(ride.saga.gathers)])

    Ride.begin, Ride.look, Ride.count = begin, look, count  # type: ignore[attr-defined]
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


class TestWatched:
    """A step looks at a gather that goes on; a replay cannot."""

    @pytest.fixture
    def asked(self, harness: SagaHarness, ride: Any) -> None:
        """One of the members has answered."""
        harness.hold("ask")
        harness.send(ride.begin, "1")
        harness.run()
        harness.deliver(harness.assert_sent("ask")[3])
        harness.run()

    @pytest.mark.usefixtures("asked")
    def test_copy(self, harness: SagaHarness, ride: Any) -> None:
        for order in (harness.state(ride, "1"), ride.find("1"), ride.wait("1", until=lambda ride: ride.saga.gathers, timeout=0)):
            (gather,) = order.saga.gathers.values()
            assert (gather.members, gather.answered, gather.deadline) == (MEMBERS, (3,), harness.now + HOUR)

    @pytest.mark.usefixtures("asked")
    def test_step(self, harness: SagaHarness, ride: Any) -> None:
        harness.send(ride.look, "1")
        harness.run()

        harness.assert_state(ride, "1", looked=[[3]])

    @pytest.mark.usefixtures("asked")
    @pytest.mark.parametrize("step", ["look", "count"])
    def test_replay(self, harness: SagaHarness, app: Celery, ride: Any, tmp_path: Path, step: str) -> None:
        """It says why it cannot go on; how many gathers there are is known."""
        harness.send(getattr(ride, step), "1")
        harness.run()
        path = tmp_path / "1.json"
        path.write_text(history_of(runtime_of(app).backend.journal, ride.__saga__, "1").to_text())
        if step == "count":
            assert harness.replay(path).looked == [[1]]  # type: ignore[union-attr, attr-defined]
            return
        with pytest.raises(ScenarioError) as caught:
            harness.replay(path)

        assert "ride '1' cannot be replayed beyond message 1: what has come of the gather" in str(caught.value)
        assert "Keep in the state what a step finds in saga.gathers" in str(caught.value)
