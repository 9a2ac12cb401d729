"""A saga that asks one task after the other, and then undoes what they have done."""

import time
from datetime import timedelta
from typing import Any

from deployed import make_app, note

from celery_sagas import Failure, Saga

app: Any = make_app()

HOUR = timedelta(hours=1)


class Trip(Saga, correlate_by="name"):
    name: str
    stations: int = 0
    reached: int = 0

    def go_on(self) -> None:
        self.send(book.s(self.name), then=booked, otherwise=failed, within=HOUR, undo=cancel)


@Trip.starts
def begin(trip: Trip, name: str, stations: int) -> None:
    trip.stations = stations
    note(trip.name, f"{time.time()}")
    trip.go_on()


@Trip.handles
def booked(trip: Trip, name: str) -> None:
    trip.reached += 1
    if trip.reached < trip.stations:
        trip.go_on()
    else:
        note(trip.name, f"{time.time()}")
        trip.compensate(then=undone)


@Trip.handles
def failed(trip: Trip, failure: Failure) -> None:
    raise AssertionError(failure.text)


@Trip.handles
def undone(trip: Trip) -> None:
    note(trip.name, f"{time.time()}")
    trip.complete()


@app.task(acks_late=True, ignore_result=True)
def book(name: str) -> str:
    return name


@app.task(acks_late=True, ignore_result=True)
def cancel(name: str) -> None:
    """Cancel what was booked."""
