"""What cannot be undone, sent again or cancelled is refused at the call, and the error says what to write."""

import math
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain, group

from celery_sagas import Backoff, Saga
from celery_sagas.errors import InvalidMessage, MisuseError
from tests.apps import Worker, as_tasks
from tests.worker.requests.trips import HOUR, Trips, define, held_back

pytestmark = as_tasks

ASKING = {"then": "came", "otherwise": "failed", "within": HOUR}


@pytest.fixture
def trips(app: Celery) -> Trips:
    """The saga and its tasks, in memory."""
    return define(app)


def refusal(trips: Trips, worker: Worker, act: Callable[[Any], object]) -> tuple[type[BaseException], str]:
    """Return the error that a call within a step raises, after which nothing is sent or changed."""
    errors: list[BaseException] = []

    def attempt(trip: Any) -> None:
        try:
            act(trip)
        except Exception as exc:
            errors.append(exc)

    delivered = trips.do(worker, attempt)
    assert delivered.error is None
    worker.run()
    assert (trips.booked, trips.cancelled, trips.rows()) == ([], [], 0)
    assert (trips.pending().requests, bool(trips.pending().undo)) == ({}, False)
    assert errors, "nothing was refused"
    return type(errors[0]), str(errors[0])


NEEDS = "undo= needs within= and otherwise="
OWN_OPTION = "undo= was given a signature with "


@pytest.mark.parametrize(
    ("undo", "options", "error", "text"),
    [
        (lambda cancel: cancel, {"within": None}, TypeError, NEEDS),
        (lambda cancel: cancel, {"otherwise": None, "within": None}, TypeError, NEEDS),
        (lambda cancel: cancel, {"otherwise": None}, TypeError, "within= needs otherwise="),
        (lambda cancel: chain(cancel.s(), cancel.s()), {}, TypeError, "undo= takes one task"),
        (lambda cancel: group(cancel.s(), cancel.s()), {}, TypeError, ""),
        (lambda cancel: "cancel", {}, TypeError, "undo= takes a task, or a signature of one, not str"),
        (lambda cancel: 3, {}, TypeError, "undo= takes a task, or a signature of one, not int"),
        (lambda cancel: print, {}, TypeError, "undo= takes a task, or a signature of one, not builtin_function"),
        (lambda cancel: SimpleNamespace(s=lambda: 3), {}, TypeError, "undo= takes a task, or a signature of one, not Simple"),
        (lambda cancel: cancel.s().set(countdown=5), {}, TypeError, OWN_OPTION),
        (lambda cancel: cancel.s().set(expires=5), {}, TypeError, OWN_OPTION),
        (lambda cancel: cancel.s().set(link=cancel.s()), {}, TypeError, OWN_OPTION),
        (lambda cancel: cancel.s().set(headers={"a": 1}, task_id="1"), {}, TypeError, "signature with headers, task_id, which"),
        (lambda cancel: cancel.s(object()), {}, InvalidMessage, "cancel"),
        (lambda cancel: cancel.s(**{"key": object()}), {}, InvalidMessage, "cancel"),
        (lambda cancel: cancel, {"then_is": "told"}, TypeError, "undo= takes the answer, and then= leaves it out"),
    ],
)
def test_undo(trips: Trips, worker: Worker, undo: Any, options: Any, error: Any, text: str) -> None:
    options = dict(options)
    then = trips.app.signature("trip.told", immutable=True) if options.pop("then_is", "") else "came"
    asking = {**ASKING, "then": then, **options}
    found = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), undo=undo(trips.cancel), **asking))

    assert found[0] is error, found
    assert text in found[1]


@pytest.mark.parametrize(
    ("undo", "problem"),
    [
        (lambda strict: strict.s("one", "too many"), "takes 2 positional arguments but 3 were given"),
        (lambda strict: strict.si("one"), "missing 1 required positional argument"),
        (lambda strict: strict.s(key="x"), "unexpected keyword argument 'key'"),
        (lambda strict: strict, "missing 1 required positional argument"),
    ],
)
def test_undo_that_does_not_accept_its_arguments(trips: Trips, worker: Worker, undo: Any, problem: str) -> None:
    @trips.app.task(name="strict")
    def strict(ticket: Any, why: str) -> None: ...

    error, text = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), undo=undo(strict), **ASKING))

    assert error is InvalidMessage
    assert "strict" in text
    assert problem in text


def test_undo_that_is_a_step_of_a_saga(trips: Trips, worker: Worker) -> None:
    """It is checked as a message to it is."""
    error, text = refusal(
        trips, worker, lambda trip: trip.send(trips.book.s("A"), undo=trips.saga.stop.si("7", "more"), **ASKING)
    )

    assert (error, "trip.stop" in text) == (InvalidMessage, True)


def test_chain_has_no_undo(trips: Trips, worker: Worker) -> None:
    sent = trips.book.s("A") | trips.book.s()
    error, text = refusal(trips, worker, lambda trip: trip.send(sent, undo=trips.cancel, **ASKING))
    assert (error, text.startswith("a chain has no undo=")) == (TypeError, True)

    error, text = refusal(trips, worker, lambda trip: trip.gather([trips.book.s("B"), sent], **GATHER, undo=trips.cancel))
    assert (error, text.startswith("a chain has no undo=")) == (TypeError, True)


GATHER = {"then": "gathered", "otherwise": "gathered", "within": HOUR}


@pytest.mark.parametrize(
    ("undo", "options", "text"),
    [
        (lambda cancel: cancel.si("A"), {}, "the undo= of gather() takes the answer of each member: name it without .si()"),
        (lambda cancel: cancel, {"within": None}, NEEDS),
        (lambda cancel: cancel, {"within": None, "otherwise": None}, NEEDS),
        (lambda cancel: 3, {}, "undo= takes a task"),
    ],
)
def test_undo_of_a_gather(trips: Trips, worker: Worker, undo: Any, options: Any, text: str) -> None:
    asking = {**GATHER, **options}
    error, told = refusal(trips, worker, lambda trip: trip.gather([trips.book.s("A")], undo=undo(trips.cancel), **asking))

    assert error is TypeError
    assert text in told


@pytest.mark.parametrize(
    ("retry", "error", "text"),
    [
        (3, TypeError, "retry= takes a Backoff(times, first, most), not int"),
        ((3, 1.0, 2.0), TypeError, "retry= takes a Backoff(times, first, most), not tuple"),
        (Backoff("3"), TypeError, "a number of times, not '3'"),  # type: ignore[arg-type]
        (Backoff(True), TypeError, "a number of times, not True"),
        (Backoff(-1), ValueError, "no number of times from 0 to 1,000"),
        (Backoff(1_001), ValueError, "no number of times from 0 to 1,000"),
        (Backoff(1, first=0), ValueError, "needs 0 < first <= most"),
        (Backoff(1, first=10, most=5), ValueError, "needs 0 < first <= most"),
        (Backoff(1, first="1"), TypeError, "first= takes a timedelta or seconds, not str"),  # type: ignore[arg-type]
        (Backoff(1, factor=0.5), ValueError, "a factor of at least 1"),
        (Backoff(1, factor=math.nan), ValueError, "a factor of at least 1"),
        (Backoff(1, first=math.nan), ValueError, "needs 0 < first <= most"),
        (Backoff(1, most=timedelta.max), ValueError, "needs 0 < first <= most"),
    ],
    ids=str,
)
def test_retry(trips: Trips, worker: Worker, retry: Any, error: Any, text: str) -> None:
    for act in (
        lambda trip: trip.send(trips.book.s("A"), **ASKING, retry=retry),
        lambda trip: trip.compensate(retry=retry),
    ):
        found = refusal(trips, worker, act)
        assert found[0] is error
        assert text in found[1]


def test_retry_needs_otherwise(trips: Trips, worker: Worker) -> None:
    error, text = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), then="came", retry=Backoff(1)))

    assert (error, text) == (TypeError, "retry= needs otherwise=: name the step that gets the last failure")


def test_chain_has_no_retry(trips: Trips, worker: Worker) -> None:
    sent = trips.book.s("A") | trips.book.s()
    error, text = refusal(trips, worker, lambda trip: trip.send(sent, **ASKING, retry=Backoff(1)))

    assert (error, text.startswith("a chain has no retry=")) == (TypeError, True)


def test_message_that_cannot_be_kept_for_a_retry(trips: Trips, worker: Worker) -> None:
    error, text = refusal(trips, worker, lambda trip: trip.send(trips.book.s(object()), **ASKING, retry=Backoff(1)))

    assert (error, "book" in text) == (InvalidMessage, True)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"then": "no such step"}, MisuseError, "'no such step' is no step of the saga trip"),
        ({"then": 3}, TypeError, "compensate(then=) takes a step, its signature or its name, not int"),
        ({"then": "(undone)"}, MisuseError, "is no step of the saga trip"),
        ({"then": "came"}, InvalidMessage, "answer"),
        ({"then": "end"}, InvalidMessage, "trip_id"),
        ({"within": 0}, ValueError, "within=0 is over before it begins"),
        ({"within": -1}, ValueError, "within=-1 is over before it begins"),
        ({"within": math.nan}, ValueError, "within=nan is over before it begins"),
        ({"within": "1h"}, TypeError, "within= takes a timedelta or seconds, not str"),
        ({"within": math.inf}, ValueError, "inf"),
        ({"within": timedelta.max}, ValueError, ""),
    ],
    ids=str,
)
def test_compensate(trips: Trips, worker: Worker, given: Any, error: Any, text: str) -> None:
    found = refusal(trips, worker, lambda trip: trip.compensate(**given))

    assert found[0] is error
    assert text in found[1]


def test_then_of_another_saga(trips: Trips, worker: Worker) -> None:
    class Journey(Saga, correlate_by="trip_id"):
        trip_id: str

    @Journey.handles
    def ended(journey: Journey) -> None: ...

    error, text = refusal(trips, worker, lambda trip: trip.compensate(then=ended))

    assert (error, "no step of the saga trip, to which compensate(then=) goes" in text) == (MisuseError, True)


def test_then_for_another_instance(trips: Trips, worker: Worker) -> None:
    error, _ = refusal(trips, worker, lambda trip: trip.compensate(then=trips.saga.end.si("8")))

    assert error.__name__ == "CorrelationError"


@pytest.mark.parametrize("id", [None, 7, ["id"]])
def test_what_is_no_id(trips: Trips, worker: Worker, id: Any) -> None:
    error, text = refusal(trips, worker, lambda trip: trip.cancel(id))

    assert (error, text.startswith("cancel() takes the id that send() or gather() has returned, not ")) == (TypeError, True)


def test_then_with_a_time_of_its_own(trips: Trips, worker: Worker) -> None:
    sent = trips.app.signature("trip.undone").set(countdown=50)
    error, text = refusal(trips, worker, lambda trip: trip.compensate(then=sent))

    assert (error, "compensate(then=) was given a signature with countdown" in text) == (TypeError, True)


@pytest.mark.parametrize("call", [lambda trip: trip.compensate(), lambda trip: trip.cancel("id")])
def test_copy_that_find_returned(trips: Trips, worker: Worker, call: Any) -> None:
    trips.do(worker, lambda trip: None)

    with pytest.raises(MisuseError):
        call(trips.trip())


def test_undo_that_kombu_could_not_read_again(trips: Trips, worker: Worker) -> None:
    undo = trips.cancel.si({"__type__": "nothing that it knows", "__value__": 1})
    error, text = refusal(trips, worker, lambda trip: trip.send(trips.book.s("A"), undo=undo, **ASKING))

    assert (error, "cannot be encoded as JSON and read again" in text) == (InvalidMessage, True)


@pytest.mark.parametrize("parallel", [True, False])
def test_what_an_instance_waits_for_stays_small(worker: Worker, trips: Trips, parallel: bool) -> None:
    """With a hundred undos, at any time."""

    def act(trip: Any) -> None:
        for number in range(100):
            trip.send(trips.book.s(number), then="came", otherwise="failed", within=HOUR, undo=trips.cancel)

    sizes = []

    def measure() -> None:
        sizes.append(len(trips.record().pending.encode()))

    trips.do(worker, act)
    measure()
    worker.run(300)
    measure()
    trips.compensate(worker, parallel=parallel)
    measure()
    worker.run(300)
    measure()

    assert max(sizes) < 50_000, sizes
    assert len(trips.cancelled) == 100
    assert trips.seen()[-1] == "undone"


def test_work_that_can_be_undone_is_bounded(worker: Worker, trips: Trips) -> None:
    """A thousand pieces of work can be undone, and no more."""

    def act(trip: Any, count: int = 500) -> None:
        members = [trips.book.s(number) for number in range(count)]
        trip.gather(members, then="gathered", otherwise="gathered", within=HOUR, undo=trips.cancel)

    for _ in range(2):
        trips.do(worker, act)
        worker.run(600)
    delivered = trips.do(worker, lambda trip: act(trip, 1))
    assert "it has 1001 pieces of work to undo, and 1,000 are allowed" in str(delivered.error)
    trips.compensate(worker, parallel=True)
    assert len(held_back(worker)) == 1_000
