"""What cannot receive interim answers is refused at the call, and nothing is sent."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.errors import InvalidMessage, MisuseError
from tests.apps import Worker, as_tasks
from tests.worker.requests.test_progress import Parcels
from tests.worker.requests.test_undo_refusals import refusal
from tests.worker.requests.trips import HOUR, Trips, define

pytestmark = as_tasks


@pytest.fixture
def trips(app: Celery) -> Trips:
    """The saga and its tasks, in memory."""
    return define(app)


@pytest.mark.parametrize(
    ("progress", "error", "text"),
    [
        (3, TypeError, "the interim answer takes a step, its signature or its name, not int"),
        ("elsewhere", MisuseError, "'elsewhere' is no step of the saga trip, to which the interim answer goes"),
        ("other.moved", MisuseError, "'other.moved' is no step of the saga trip"),
        ("told", InvalidMessage, "it is given the interim answer before its arguments, and has no room for it"),
        ("trip.(answered)", MisuseError, "is no step of the saga trip"),
    ],
)
def test_step(trips: Trips, worker: Worker, progress: Any, error: type[Exception], text: str) -> None:
    class Other(Saga, correlate_by="key"):
        key: str

    @Other.handles
    def moved(other: Other, where: str) -> None: ...

    found = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), then="came", progress=progress))

    assert found[0] is error, found
    assert text in found[1]


def test_argument_that_the_step_lacks(trips: Trips, worker: Worker) -> None:
    Parcels(trips)
    progress = trips.app.tasks["trip.moved"].s(speed=3)
    error, text = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), then="came", progress=progress))

    assert (error, "speed: it is unknown" in text) == (InvalidMessage, True)


def test_arguments_that_are_too_large(trips: Trips, worker: Worker) -> None:
    Parcels(trips)
    progress = trips.app.tasks["trip.moved"].s(by="x" * 33_000)
    error, text = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), then="came", progress=progress))

    assert error is InvalidMessage
    assert "the arguments of then=, otherwise= and progress= have 33" in text


def test_gather_has_none(trips: Trips, worker: Worker) -> None:
    """Each of its members answers once; the gather itself can be watched."""
    error, _ = refusal(trips, worker, lambda trip: trip.gather([trips.book.s("A")], then="gathered", progress="came"))

    assert error is TypeError


def test_step_that_takes_no_value(trips: Trips, worker: Worker) -> None:
    """A signature that leaves it out is allowed, as it is for the answer."""
    parcels = Parcels(trips)
    told = trips.app.tasks["trip.told"].si()
    parcels.ask(worker, progress=told, within=HOUR)
    parcels.reply(worker, "Rome")
    worker.run()

    assert trips.seen() == ["told"]
