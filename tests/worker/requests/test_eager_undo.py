"""Undoing in eager mode: everything happens at once, but for what is due later."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import Backoff
from tests.worker.requests.trips import HOUR, Trips, define


@pytest.fixture
def trips(eager: Celery) -> Trips:
    """The saga and its tasks."""
    return define(eager)


def do(trips: Trips, act: Any) -> None:
    """Have the trip 7 act."""
    trips.act = act
    trips.saga.travel.delay("7")


def book(trips: Trips, what: str, **options: Any) -> None:
    """Have the trip 7 book something."""
    options = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": trips.cancel, **options}
    do(trips, lambda trip: trip.send(trips.book.s(what), **options) and None)


def test_everything_is_undone(trips: Trips) -> None:
    for what in "AB":
        book(trips, what)
    do(trips, lambda trip: trip.compensate(then="undone"))

    assert trips.args() == [("ticket B",), ("ticket A",)]
    assert trips.seen() == ["came ticket A", "came ticket B", "undone"]


def test_instance_completes(trips: Trips) -> None:
    book(trips, "A")
    do(trips, lambda trip: trip.compensate(then="finished"))

    assert trips.saga.find("7") is None


def test_cancelled_one_of_the_same_step(trips: Trips) -> None:
    options: Any = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": trips.cancel}
    do(trips, lambda trip: trip.cancel(trip.send(trips.book.s("A"), **options)) and None)

    assert (trips.booked, trips.seen()) == ([], [])


def test_request_is_tried_again_at_once(trips: Trips) -> None:
    trips.failing = {"A"}
    trips.app.conf.task_eager_propagates = False
    book(trips, "A", retry=Backoff(2), undo=trips.cancel.si("A"))

    assert trips.seen() == ["failed error"]
    do(trips, lambda trip: trip.compensate(then="undone"))
    assert trips.args() == [("A",)] * 3
