"""Sagas that undo, in virtual time: what a test sees of them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Backoff, Failure, Gathered, Saga
from celery_sagas.engine.history import history_of
from celery_sagas.errors import MisuseError
from celery_sagas.signals import saga_compensated
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import app, definitions, new_app

__all__ = ["app", "definitions", "new_app"]

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
NAMES = ("book_flight", "book_hotel", "book_car", "cancel_flight", "cancel_hotel", "cancel_car")


def task(app: Celery, name: str) -> None:
    """Register a task that says how it was called."""

    def call(*given: str) -> str:
        return f"{name}({', '.join(given)})"

    app.task(name=name, acks_late=True)(call)


@pytest.fixture
def trip(app: Celery) -> Any:
    """A trip that books one thing after the other, and keeps its history."""
    for name in NAMES:
        task(app, name)
    tasks = app.tasks

    class Trip(Saga, correlate_by="trip_id", history="messages"):
        trip_id: str
        seen: list[str] = []

    @Trip.starts
    def start(trip: Trip, trip_id: str) -> None:
        trip.send(tasks["book_flight"].s(), then=flight, otherwise=failed, within=HOUR, undo=tasks["cancel_flight"])

    @Trip.handles
    def flight(trip: Trip, what: str) -> None:
        trip.seen.append(what)
        retry = Backoff(1, 60)
        undo = tasks["cancel_hotel"].si("hotel")
        trip.send(tasks["book_hotel"].s(), then=hotel, otherwise=failed, within=HOUR, undo=undo, retry=retry)

    @Trip.handles
    def hotel(trip: Trip, what: str) -> None:
        trip.seen.append(what)
        cars = [tasks["book_car"].s(str(number)) for number in range(3)]
        trip.gather(cars, then=cars_booked, otherwise=cars_booked, within=HOUR, undo=tasks["cancel_car"])

    @Trip.handles
    def cars_booked(trip: Trip, cars: Gathered[str]) -> None:
        trip.seen += cars.values

    @Trip.handles
    def failed(trip: Trip, failure: Failure) -> None:
        trip.seen.append(failure.kind)
        trip.compensate(then=undone, retry=Backoff(1, 60))

    @Trip.handles
    def give_up(trip: Trip, trip_id: str) -> None:
        trip.compensate(then=undone, retry=Backoff(1, 60))

    @Trip.handles
    def leave(trip: Trip, trip_id: str) -> None:
        trip.complete()

    @Trip.handles
    def undone(trip: Trip) -> None:
        assert not trip.saga.undoing
        trip.complete()

    Trip.start, Trip.give_up, Trip.leave = start, give_up, leave  # type: ignore[attr-defined]
    return Trip


@pytest.fixture
def harness(app: Celery, trip: Any) -> Any:
    with SagaHarness(app) as harness:
        yield harness


def undos(harness: SagaHarness) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the undos that were sent, in order, with their arguments."""
    return [(sent.task, tuple(sent.args)) for sent in harness.sent if sent.task.startswith("cancel")]


CARS = [("cancel_car", (f"book_car({number})",)) for number in (2, 1, 0)]
REST = [("cancel_hotel", ("hotel",)), ("cancel_flight", ("book_flight()",))]


def test_everything_is_undone_last_outcome_first(harness: SagaHarness, trip: Any) -> None:
    ended: list[Any] = []
    saga_compensated.connect(lambda outcome, **_: ended.append(outcome.key), weak=False, dispatch_uid="ended")
    try:
        harness.send(trip.start, "7")
        harness.run()
        harness.send(trip.give_up, "7")
        harness.run()
    finally:
        saga_compensated.disconnect(dispatch_uid="ended")
    assert undos(harness) == CARS + REST
    assert ended == ["7"]
    harness.assert_completed(trip, "7", by="trip.undone")


def test_undo_names_the_work_that_it_undoes(harness: SagaHarness, trip: Any) -> None:
    harness.send(trip.start, "7")
    harness.run()
    harness.send(trip.give_up, "7")
    harness.run()
    booked = {sent.id: sent.task for sent in harness.sent if sent.task.startswith("book")}
    undone = [(sent.headers["saga_undoes"], sent.task) for sent in harness.sent if sent.task.startswith("cancel")]
    assert sorted(id for id, _ in undone) == sorted(booked)
    assert all(booked[id].replace("book", "cancel") == task for id, task in undone)


def test_failed_request_is_sent_again_before_its_step_hears_of_it(harness: SagaHarness, trip: Any) -> None:
    harness.fail("book_hotel", OSError("away"))
    harness.send(trip.start, "7")
    harness.run()
    assert harness.state(trip, "7").seen == ["book_flight()"]
    harness.restore("book_hotel")
    harness.advance(MINUTE)
    assert harness.state(trip, "7").seen[1] == "book_hotel()"


def test_both_attempts_are_undone_if_the_undo_takes_no_answer(harness: SagaHarness, trip: Any) -> None:
    """Each was sent, and may have done its work before it failed."""
    harness.fail("book_hotel", OSError("away"))
    harness.send(trip.start, "7")
    harness.advance(MINUTE)
    assert undos(harness) == [REST[0], REST[0], REST[1]]
    harness.assert_completed(trip, "7", by="trip.undone")


@pytest.mark.parametrize("decide", [retry_dead_letter, discard_dead_letter])
def test_failed_undo_waits_for_an_operator(harness: SagaHarness, app: Celery, trip: Any, decide: Any) -> None:
    harness.fail("cancel_hotel", OSError("away"))
    harness.send(trip.start, "7")
    harness.run()
    harness.send(trip.give_up, "7")
    harness.advance(24 * HOUR)
    (dead,) = harness.dead
    assert dead.error == "UndoFailed"
    assert "cancel_hotel could not undo what trip '7' has done, in 2 attempts: OSError: away" in dead.text
    assert undos(harness) == [*CARS, REST[0], REST[0]]
    assert harness.state(trip, "7").saga.undoing
    assert "2 are left" not in dead.text

    harness.restore("cancel_hotel")
    decide(runtime_of(app), dead)
    harness.run()
    assert undos(harness)[5:] == (REST if decide is retry_dead_letter else REST[1:])
    assert harness.dead == []
    harness.assert_completed(trip, "7", by="trip.undone")


def test_instance_does_not_complete_while_it_is_undone(harness: SagaHarness, app: Celery, trip: Any) -> None:
    harness.hold("cancel_car")
    harness.send(trip.start, "7")
    harness.run()
    harness.send(trip.give_up, "7")
    harness.run()
    harness.send(trip.leave, "7")
    harness.run()
    (dead,) = harness.dead
    assert (dead.error, "trip '7' is being undone, 5 are left" in dead.text) == (MisuseError.__name__, True)
    harness.restore("cancel_car")
    harness.run()
    harness.assert_completed(trip, "7", by="trip.undone")


def test_history_of_what_was_undone_is_replayed(harness: SagaHarness, app: Celery, trip: Any, tmp_path: Path) -> None:
    harness.fail("book_car", OSError("away"))
    harness.fail("cancel_hotel", OSError("away"))
    harness.send(trip.start, "7")
    harness.run()
    harness.send(trip.give_up, "7")
    harness.run()
    harness.restore("cancel_hotel")
    harness.advance(24 * HOUR)
    harness.assert_completed(trip, "7", by="trip.undone")
    path = tmp_path / "history.json"
    path.write_text(history_of(runtime_of(app).backend.journal, trip.__saga__, "7").to_text())
    assert harness.replay(path) is None
