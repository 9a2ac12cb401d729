"""Trips: a flight, a hotel and a car at three services, which fail, are silent or are late; what they have booked is undone."""

import time
from datetime import timedelta
from typing import Any

from bookings import Bookings, reference_of
from celery import Task, shared_task
from celery.exceptions import Ignore
from deployed import FOLDER, make_app

from celery_sagas import Backoff, Failure, Saga

app = make_app()

HOUR = timedelta(hours=1)
#: How long the answer of a service may take that is silent or late; and how long a late one takes, and more. Seconds.
SHORT_S, LATE_S = 1.0, 1.5
RETRY = Backoff(10, first=0.1, most=0.5)
#: A booking whose process dies is repeated: else nobody would know what it has done.
LASTING = {"bind": True, "acks_late": True, "reject_on_worker_lost": True}
SERVICES = ("flight", "hotel", "car")


class Refused(Exception):
    """Raised by a service that fails."""


def book(self: "Task[Any, Any]", trip_id: str, service: str, how: str) -> str:
    """Book; ``how`` is ``fails``, ``fails booked``, ``silent``, ``silent booked``, ``late``, ``late unasked`` or ``good``."""
    bookings, reference = Bookings(FOLDER), reference_of(service, trip_id)
    if how.startswith("late"):
        time.sleep(LATE_S)
    if how not in ("fails", "silent"):
        bookings.book(reference, str(self.request.id))
    if how.startswith("fails"):
        raise Refused(reference)
    if how.startswith("silent"):
        raise Ignore
    return reference


def cancel(self: "Task[Any, Any]", reference: str, fails: int, *, closes: bool = False) -> None:
    """Cancel a booking; fail the first times."""
    bookings, work = Bookings(FOLDER), str(self.request.saga_undoes)
    if bookings.attempt(work, str(self.request.id)) <= fails:
        raise Refused(reference)
    bookings.cancel(reference, work, closes=closes)


BOOK = {service: shared_task(name=f"{service}.book", **LASTING)(book) for service in SERVICES}
CANCEL = {service: shared_task(name=f"{service}.cancel", **LASTING)(cancel) for service in SERVICES}


class Trip(Saga, correlate_by="trip_id"):
    trip_id: str
    how: str = "good"  #: what a service does
    at: str = ""  #: the service
    fails: int = 0  #: how often each of them fails to cancel
    is_undone: bool = False


def send_booking(trip: Trip, service: str, then: Any) -> None:
    """Have a service book. Work whose undo takes the answer has to be repeated until there is one, also when it is late."""
    how = trip.how if trip.at == service else "good"
    sent = BOOK[service].s(trip.trip_id, service, how)
    undo, unasked = CANCEL[service].s(trip.fails), CANCEL[service].si(reference_of(service, trip.trip_id), trip.fails)
    if how.startswith("silent"):
        undo = unasked.clone(kwargs={"closes": True})  # who is silent may book when it was cancelled
    elif how in ("fails booked", "late unasked") or service == "hotel":
        undo = unasked
    if how.startswith("late"):
        sent = sent.set(expires=HOUR.total_seconds())
    within = timedelta(seconds=SHORT_S) if how.startswith(("silent", "late")) else HOUR
    trip.send(sent, then=then, otherwise=no_trip, within=within, undo=undo)


@Trip.starts(if_exists="ignore")
def begin(trip: Trip, trip_id: str, how: str, at: str, fails: int) -> None:
    trip.how, trip.at, trip.fails = how, at, fails
    send_booking(trip, "flight", flight_booked)


@Trip.handles
def flight_booked(trip: Trip, reference: str) -> None:
    send_booking(trip, "hotel", hotel_booked)


@Trip.handles
def hotel_booked(trip: Trip, reference: str) -> None:
    send_booking(trip, "car", car_booked)


@Trip.handles
def car_booked(trip: Trip, reference: str) -> None:
    trip.complete()


@Trip.handles
def no_trip(trip: Trip, failure: Failure) -> None:
    trip.compensate(then=undone, retry=RETRY)


@Trip.handles
def call_off(trip: Trip, trip_id: str) -> None:
    trip.compensate(then=undone, retry=RETRY)


@Trip.handles
def undone(trip: Trip) -> None:
    """End a trip, unless an answer may come that has to be undone."""
    trip.is_undone = True
    if not trip.how.startswith("late"):
        trip.complete()


@Trip.handles
def end(trip: Trip, trip_id: str) -> None:
    trip.complete()
