"""Travel: plain Celery tasks that talk to an airline, a hotel and a car rental. What becomes of them is up to the destination."""

from typing import Any

from celery import Task, shared_task
from celery.exceptions import Ignore

from example_project import bookings


@shared_task(bind=True)
def book_flight(self: "Task[Any, Any]", trip_id: str, destination: str) -> str:
    """Book a flight; return its number."""
    if destination == "Hanoi" and not self.request.retries:
        raise self.retry(countdown=3)  # the airline has to ask for a seat first
    return bookings.book("flight", trip_id)


@shared_task
def book_hotel(trip_id: str, destination: str) -> str:
    """Book a hotel; return the booking's number."""
    number = bookings.book("hotel", trip_id)
    if destination == "Shangri-La":
        raise Ignore  # the room is booked, and nobody says so: nothing comes of this task, neither an answer nor a failure
    return number


@shared_task(throws=(bookings.Refused,))
def book_car(trip_id: str, destination: str) -> str:
    """Book a car; return the booking's number."""
    if destination == "Venice":
        raise bookings.Refused("there are no cars in Venice")
    return bookings.book("car", trip_id)


@shared_task
def cancel(service: str, trip_id: str) -> None:
    """Cancel what a service has booked for a trip, if it has. It may run twice: what is cancelled stays cancelled."""
    bookings.cancel(service, trip_id)
