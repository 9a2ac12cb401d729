"""What undo, retries of requests and cancel must not do where they meet each other, timeouts and late answers."""

from typing import Any

import pytest
from celery import Celery
from pydantic import BaseModel

from celery_sagas import Backoff, Failure, Saga
from celery_sagas.testing import SagaHarness
from celery_sagas.worker.operators import discard_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker
from tests.worker.requests.trips import HOUR, Trips, define, held_back, hours_ago


@pytest.fixture
def trips(app: Celery) -> Trips:
    """The saga and its tasks, in memory."""
    return define(app)


def test_then_is_no_timeout_that_a_step_might_unschedule(trips: Trips, worker: Worker) -> None:
    trips.send(worker)
    worker.run()
    trips.compensate(worker)
    worker.one()  # the undo
    worker.one()  # its answer
    (then,) = held_back(worker)

    def clear(trip: Any) -> None:
        for name in [*trip.saga.timeouts, then.id]:
            trip.unschedule(name)

    trips.do(worker, clear)
    assert not trips.trip().saga.timeouts
    worker.deliver_again(then)

    assert trips.seen()[-1] == "undone"


def test_request_is_cancelled_by_the_id_that_is_shown(trips: Trips, worker: Worker) -> None:
    """That of the first attempt, whichever is open: none of them is heard of any more."""
    with hours_ago():
        first = trips.hold(worker, retry=Backoff(1), undo=None)
        trips.come(worker, first, "deadline")
        assert trips.relay("sent") == 1
    held_back(worker)
    (request,) = trips.trip().saga.requests.values()
    assert (request.id, list(trips.trip().saga.requests)) == (trips.ids["A"], [trips.ids["A"]])
    trips.do(worker, lambda trip: trip.cancel(request.id))
    trips.come(worker, first, "answer")

    assert (trips.seen(), trips.pending().requests) == ([], {})


def test_second_answer_does_not_undo_the_first_if_the_undo_takes_none(trips: Trips, worker: Worker) -> None:
    """The undo might name the work of either attempt: nothing is undone while the work stands."""
    with hours_ago():
        first = trips.hold(worker, retry=Backoff(1), undo=trips.cancel.si("A"))
        trips.come(worker, first, "deadline")
        assert trips.relay("sent") == 1
    (second,) = held_back(worker)
    trips.come(worker, second, "answer")
    trips.come(worker, first, "answer")
    assert (trips.seen(), trips.args()) == (["came ticket A", "came ticket A late"], [])

    trips.compensate(worker)
    worker.run()
    assert trips.args() == [("A",), ("A",)]  # each attempt was sent


def test_discarded_answer_withdraws_the_retry(trips: Trips, worker: Worker, app: Celery) -> None:
    @trips.saga.handles
    def counted(trip: Any, count: int) -> None: ...

    first = trips.hold(worker, then=counted, retry=Backoff(1), undo=None)
    trips.come(worker, first, "failure")
    assert trips.rows() == 2  # the retry, which waits for its pause, and its deadline
    trips.come(worker, first, "answer")
    (dead,) = trips.dead()
    assert discard_dead_letter(runtime_of(app), dead)

    assert trips.rows() == 0


@pytest.mark.parametrize("count", [999, 1_000])
def test_compensation_ends_whatever_else_the_instance_waits_for(trips: Trips, worker: Worker, count: int) -> None:
    def wait(trip: Any) -> None:
        for number in range(count):
            trip.schedule("told", after=HOUR, name=str(number))

    trips.send(worker)
    worker.run()
    assert trips.do(worker, wait).error is None
    trips.compensate(worker)
    worker.run()

    assert (trips.args(), trips.seen()[-1], trips.dead()) == ([("ticket A",)], "undone", [])


def test_undo_does_not_count_as_one_of_a_thousand_requests(trips: Trips, worker: Worker) -> None:
    trips.send(worker)
    worker.run()

    def ask(trip: Any) -> None:
        for number in range(1_000):
            trip.send(trips.book.s(number), then="came", otherwise="failed", within=HOUR)

    assert trips.do(worker, ask).error is None
    held_back(worker)
    trips.compensate(worker)
    worker.run()

    assert trips.args() == [("ticket A",)]


class Wish(BaseModel):
    """What a task is asked for."""

    what: str


def test_retried_request_may_have_what_a_step_takes(app: Celery) -> None:
    """In a signature that was made by the name of the step, too."""

    class Kitchen(Saga, correlate_by="table"):
        table: str

    @Kitchen.starts
    def cook(kitchen: Kitchen, table: str, wish: Wish) -> None:
        kitchen.reply(wish.what)

    class Guest(Saga, correlate_by="name"):
        name: str
        got: str = ""

    @Guest.starts
    def order(guest: Guest, name: str) -> None:
        wish = app.signature("kitchen.cook", args=(name, Wish(what="soup")))
        guest.send(wish, then=served, otherwise=hungry, within=HOUR, retry=Backoff(2))

    @Guest.handles
    def served(guest: Guest, what: str) -> None:
        guest.got = what

    @Guest.handles
    def hungry(guest: Guest, failure: Failure) -> None: ...

    with SagaHarness(app) as harness:
        harness.send(order, "me")
        harness.run()
        harness.assert_state(Guest, "me", got="soup")


def test_late_end_without_a_value_is_undone(app: Celery) -> None:
    """No step takes it, and the work was done."""

    @app.task(name="cancel", acks_late=True)
    def cancel(tour: Any) -> None:
        """Cancel a tour."""

    class Tour(Saga, correlate_by="tour_id"):
        tour_id: str

    @Tour.starts
    def book_tour(tour: Tour, tour_id: str) -> None: ...

    @Tour.handles
    def end(tour: Tour, tour_id: str) -> None:
        tour.complete()

    class Holiday(Saga, correlate_by="name"):
        name: str

    @Holiday.starts
    def plan(holiday: Holiday, name: str) -> None:
        holiday.send(book_tour.s(name), then=booked, otherwise=failed, within=HOUR, undo=cancel)

    @Holiday.handles
    def booked(holiday: Holiday, what: str) -> None: ...

    @Holiday.handles
    def failed(holiday: Holiday, failure: Failure) -> None: ...

    @Holiday.handles
    def give_up(holiday: Holiday, name: str) -> None:
        holiday.compensate()

    with SagaHarness(app) as harness:
        harness.send(plan, "me")
        harness.advance(2 * HOUR)
        harness.send(end, "me")
        harness.run()
        harness.send(give_up, "me")
        harness.run()
        harness.assert_sent(cancel, None, times=1)
        assert not harness.dead


def test_answer_after_a_certain_failure_is_undone(trips: Trips, worker: Worker) -> None:
    """A run whose worker was killed may have failed after all, and the next one have done the work."""
    held = trips.hold(worker)
    trips.come(worker, held, "failure")
    trips.compensate(worker)
    worker.run()
    assert (trips.seen(), trips.args()) == (["failed error", "undone"], [])
    trips.come(worker, held, "answer")

    assert (trips.seen(), trips.args()) == (["failed error", "undone"], [("ticket A",)])


def test_dead_letter_of_then_can_be_discarded(trips: Trips, worker: Worker, app: Celery) -> None:
    """The compensation is over with it."""

    @trips.saga.handles
    def fail(trip: Any) -> None:
        raise ValueError("no")

    trips.send(worker)
    worker.run()
    trips.compensate(worker, then="fail")
    worker.run()
    (dead,) = trips.dead()
    assert trips.trip().saga.undoing
    assert discard_dead_letter(runtime_of(app), dead)

    assert (trips.trip().saga.undoing, trips.dead()) == (False, [])
