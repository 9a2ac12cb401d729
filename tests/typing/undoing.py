"""Undoing as type checkers see it, with and without celery-types. Checked, never run; see ``sagas.py``."""

from datetime import timedelta
from typing import assert_type

from celery_sagas import Backoff, Failure, Gathered, Saga


class Trip(Saga, correlate_by="trip_id"):
    trip_id: str


class Journey(Saga, correlate_by="trip_id"):
    trip_id: str


@Trip.starts
def book(trip: Trip, trip_id: str) -> str:
    return trip_id


@Trip.handles
def cancel(trip: Trip, trip_id: str) -> None: ...


@Trip.handles
def came(trip: Trip, answer: str) -> None: ...


@Trip.handles
def failed(trip: Trip, failure: Failure) -> None: ...


@Trip.handles
def all_came(trip: Trip, came: Gathered[str]) -> None: ...


@Trip.handles
def undone(trip: Trip) -> None: ...


@Trip.handles
def undone_with(trip: Trip, note: str) -> None: ...


@Journey.handles
def journey_undone(journey: Journey) -> None: ...


def undos(trip: Trip) -> None:
    assert_type(trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel), str)
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel.s())
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel.si("7"))
    trip.gather([book.s("7")], then=all_came, otherwise=all_came, within=60, undo=cancel)


def retries(trip: Trip) -> None:
    trip.send(book.s("7"), then=came, otherwise=failed, retry=Backoff(3))
    trip.send(book.s("7"), otherwise=failed, retry=Backoff(3, timedelta(seconds=1), most=60.0, factor=1.5))
    assert_type(Backoff(3).pause_s(1), float)


def compensation(trip: Trip) -> None:
    trip.compensate()
    trip.compensate(then=undone)
    trip.compensate(then=undone_with.s("in vain"), parallel=True, retry=Backoff(3), within=timedelta(hours=1))
    trip.compensate(then="undone", within=60)
    assert_type(trip.cancel("request"), bool)
    assert_type(trip.saga.undoing, bool)


def no_undo(trip: Trip) -> None:
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo="cancel")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.gather([book.s("7")], then=all_came, otherwise=all_came, within=60, undo=print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_backoff(trip: Trip) -> None:
    trip.send(book.s("7"), otherwise=failed, retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.compensate(retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.compensate(within="1h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Backoff("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_step(trip: Trip) -> None:
    trip.compensate(then=journey_undone)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.compensate(then=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.compensate(undone)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    trip.cancel(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
