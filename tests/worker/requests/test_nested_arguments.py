"""Arguments that are nested too deeply to be read again are not kept with an instance: it stays readable."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import Backoff
from celery_sagas.errors import InvalidState
from tests.apps import Worker, as_tasks
from tests.worker.requests.trips import HOUR, Trips, define

pytestmark = as_tasks

ASKING: dict[str, Any] = {"then": "came", "otherwise": "failed", "within": HOUR}
TOO_DEEP = "the arguments of what it may send again, or undo, are nested too deeply: in all 192 levels are allowed"


@pytest.fixture
def trips(app: Celery) -> Trips:
    """The saga, and tasks that take anything, in memory."""
    trips = define(app)

    @app.task(name="anything")
    def anything(what: Any) -> Any:
        return what

    trips.book = trips.cancel = anything
    return trips


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def attempt(trips: Trips, worker: Worker, levels: int, key: str, kept: str) -> BaseException | None:
    """Have a trip send a message whose kept signature, or undo, has a nested argument; return the error."""
    what = nested(levels)
    undo = trips.cancel.si(what) if kept == "undo" else None
    again = {"retry": Backoff(3)} if kept == "retry" else {"undo": undo}
    sent = trips.book.s(what if kept == "retry" else "A")
    return trips.do(worker, lambda trip: trip.send(sent, **ASKING, **again), key).error


@pytest.mark.parametrize("kept", ["retry", "undo"])
@pytest.mark.parametrize("levels", [195, 196, 197, 198])
def test_message_that_could_not_be_read_again(trips: Trips, worker: Worker, kept: str, levels: int) -> None:
    assert trips.do(worker, lambda trip: None).error is None

    error = attempt(trips, worker, levels, "7", kept)

    assert isinstance(error, InvalidState)
    assert TOO_DEEP in str(error)
    assert not trips.pending().requests
    assert trips.do(worker, lambda trip: None).error is None


@pytest.mark.parametrize("kept", ["retry", "undo"])
def test_all_that_is_accepted_can_be_undone(trips: Trips, worker: Worker, kept: str) -> None:
    """While it is undone, it lies deeper in what is kept."""
    accepted = []
    for levels in range(178, 199):
        key = str(levels)
        assert trips.do(worker, lambda trip: None, key).error is None
        if attempt(trips, worker, levels, key, kept) is None:
            accepted.append(levels)
        worker.run()
        assert trips.do(worker, lambda trip: trip.compensate(then="undone"), key).error is None
        worker.run()
        assert trips.seen(key)[-1].startswith("undone")

    assert accepted == list(range(178, accepted[-1] + 1)), "the deeper ones are refused"
    assert 185 <= accepted[-1] < 195


def test_answer_that_an_undo_would_take(trips: Trips, worker: Worker) -> None:
    sent = trips.book.s(nested(196))
    assert trips.do(worker, lambda trip: trip.send(sent, **ASKING, undo=trips.cancel)).error is None
    worker.run()

    assert trips.seen() == ["failed unhandled"]
    assert [(dead.error, TOO_DEEP in dead.text) for dead in trips.dead()] == [("InvalidState", True)]
