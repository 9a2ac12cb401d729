"""A third saga: a trip, which books a flight, a hotel and a car. If it cannot have all of them, it keeps none."""

from datetime import timedelta

from celery_sagas import Failure, Saga
from example_project.orders import EARLY
from example_project.travel import book_car, book_flight, book_hotel, cancel

HOUR = timedelta(hours=1)
#: What a trip books, in this order.
SERVICES = ("flight", "hotel", "car")


class Trip(Saga, correlate_by="trip_id"):
    """A trip, from its first booking until all is booked, or nothing is left."""

    trip_id: str
    destination: str = ""
    patience: timedelta = HOUR  #: with the hotel
    problem: str = ""


@Trip.starts(if_exists="ignore")
def book_trip(trip: Trip, trip_id: str, destination: str, patience: timedelta) -> None:
    """Begin with the flight."""
    trip.destination, trip.patience = destination, patience
    # Its undo is stored with the request. This one takes no answer (``.si``), so it runs whatever came of the request: a service
    # that has not answered may have booked all the same. One of ``.s`` would be given the number, and run only if there is one.
    undo = cancel.si("flight", trip_id)
    trip.send(book_flight.s(trip_id, destination), then=flight_booked, otherwise=no_trip, within=HOUR, undo=undo)


@Trip.handles
def flight_booked(trip: Trip, number: str) -> None:
    """Go on with the hotel."""
    room, undo = book_hotel.s(trip.trip_id, trip.destination), cancel.si("hotel", trip.trip_id)
    trip.send(room, then=hotel_booked, otherwise=no_trip, within=trip.patience, undo=undo)


@Trip.handles
def hotel_booked(trip: Trip, number: str) -> None:
    """Go on with the car."""
    car, undo = book_car.s(trip.trip_id, trip.destination), cancel.si("car", trip.trip_id)
    trip.send(car, then=car_booked, otherwise=no_trip, within=HOUR, undo=undo)


@Trip.handles
def car_booked(trip: Trip, number: str) -> None:
    """End a trip that is booked."""
    trip.complete()


@Trip.handles
def no_trip(trip: Trip, failure: Failure) -> None:
    """Cancel what is booked, since something cannot be had: the last booking first, each until that has worked."""
    trip.problem = failure.text
    trip.compensate(then=all_cancelled)


# The customer may be quicker than the shop, and may call when a booking is under way: that is awaited, and cancelled.
@Trip.handles(if_missing="defer", defer_for=EARLY)
def call_off(trip: Trip, trip_id: str) -> None:
    """Cancel what is booked, since the customer stays at home."""
    trip.compensate(then=all_cancelled)


@Trip.handles
def all_cancelled(trip: Trip) -> None:
    """End a trip of which nothing is left: this runs once."""
    trip.complete()
