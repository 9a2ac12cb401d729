"""Tasks that undo others, as type checkers see them with celery-types. Checked, never run; see ``typing/sagas.py``."""

from typing import Any, assert_type

from celery import Task, shared_task, signature

from celery_sagas import Backoff, Failure, Gathered, Saga


class Trip(Saga, correlate_by="trip_id"):
    trip_id: str


@Trip.handles
def came(trip: Trip, answer: str) -> None: ...


@Trip.handles
def failed(trip: Trip, failure: Failure) -> None: ...


@Trip.handles
def all_came(trip: Trip, came: Gathered[str]) -> None: ...


@shared_task(acks_late=True)
def book(trip_id: str) -> str:
    return trip_id


@shared_task(acks_late=True)
def cancel(ticket: str) -> None: ...


@shared_task(bind=True, acks_late=True)
def cancel_bound(self: "Task[Any, Any]", ticket: str) -> None: ...


def undos(trip: Trip) -> None:
    assert_type(trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel), str)
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel_bound, retry=Backoff(3))
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel.s())
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=cancel.si("7").set(queue="slow"))
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=signature("elsewhere.cancel"))
    trip.gather([book.s("7")], then=all_came, otherwise=all_came, within=60, undo=cancel)


def no_undo(trip: Trip) -> None:
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    trip.send(book.s("7"), then=came, otherwise=failed, within=60, undo=print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def no_step(trip: Trip) -> None:
    trip.compensate(then=cancel)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
