"""Work whose process dies between the work and its answer, and which is undone: only its repeat can answer."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Failure, Gathered, Saga
from celery_sagas.testing.harness.harness import SagaHarness
from tests.apps import app, definitions, new_app

__all__ = ["app", "definitions", "new_app"]

HOUR = timedelta(hours=1)


@pytest.fixture
def rooms() -> list[str]:
    """The rooms that are booked."""
    return []


@pytest.fixture
def stay(app: Celery, rooms: list[str]) -> Any:
    """A stay whose rooms are cancelled by their numbers."""

    @app.task(name="book", acks_late=True)
    def book(number: str) -> str:
        rooms.extend({number} - set(rooms))
        return number

    @app.task(name="cancel", acks_late=True)
    def cancel(number: str) -> None:
        rooms.remove(number)

    class Stay(Saga, correlate_by="name"):
        name: str

    @Stay.starts
    def book_one(stay: Stay, name: str) -> None:
        stay.send(book.s("1"), then=booked, otherwise=failed, within=HOUR, undo=cancel)

    @Stay.starts
    def book_two(stay: Stay, name: str) -> None:
        rooms = [book.s("1"), book.s("2")]
        stay.gather(rooms, then=all_booked, otherwise=all_booked, within=HOUR, undo=cancel)

    @Stay.handles
    def booked(stay: Stay, number: str) -> None: ...

    @Stay.handles
    def all_booked(stay: Stay, numbers: Gathered[str]) -> None: ...

    @Stay.handles
    def failed(stay: Stay, failure: Failure) -> None: ...

    @Stay.handles
    def call_off(stay: Stay, name: str) -> None:
        stay.compensate(then=undone)

    @Stay.handles
    def undone(stay: Stay) -> None:
        stay.complete()

    return Stay


@pytest.mark.parametrize("begin", ["stay.book_one", "stay.book_two"])
def test_work_that_was_done_and_not_answered_is_undone(app: Celery, stay: Any, rooms: list[str], begin: str) -> None:
    with SagaHarness(app) as harness:
        harness.send(app.tasks[begin], name="a")
        harness.deliver(begin)
        harness.deliver("book", crash="after_handler")
        assert rooms == ["1"]
        harness.send(app.tasks["stay.call_off"], name="a")
        harness.deliver("stay.call_off")
        harness.run()
        harness.assert_completed(stay, "a", by="stay.undone")
        assert rooms == []
