"""The unit of work by itself, without a store; and its driver, which performs what it wants."""

import json
from typing import Any

import pytest

from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.commit import WorkTerms
from celery_sagas.engine.handling import Driver
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.session import Attempt, Delivery, Session
from celery_sagas.engine.unit_of_work import Handled, Steps, handle_once
from celery_sagas.errors import AlreadyHandled, RevisionConflict, StoreUnavailable, TooManyDeliveries
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.operations import CountDelivery, Find, Insert, Lock, Operation, OutcomeOf, Update, Write
from celery_sagas.stores.records import Entry, Found, Record
from celery_sagas.worker.asking.undo import UndoOutcomes
from tests.engine.conftest import Deferred, Order, handler, send, starter


def place(order: Order, order_id: str) -> None:
    """Start, or go on."""
    order.total += 1
    send(order, "charge")


def pay(order: Order, order_id: str) -> None:
    """Go on."""


PLACE, PAY = starter(place), handler(pay)
RECORD = Record("i1", "order", "42", 3, 1, '{"order_id": "42", "total": 7}', "{}", 0, 0)
FIRST = Attempt()
TERMS = WorkTerms(
    lambda message, next_id: SerializedMessage(next_id(), "", str(message), "{}"),
    lambda to, value: None,
    UndoOutcomes(lambda to, value: None),
    Deferred(),
    1_000_000,
    "this process",
    1_000,
)


def work_of(step: StepDefinition, attempt: Attempt = FIRST, **given: Any) -> Steps[Handled]:
    """Return the unit of work of the message m1."""
    delivery = Delivery(step, "m1", {"order_id": "42"}, Session("m1"), lambda f, first, **rest: f(first, **rest), **given)
    return handle_once(delivery, TERMS, attempt)


def play(work: Steps[Handled], *answers: Any) -> tuple[list[Operation], Handled | None]:
    """Send answers; return what was wanted, and what came of it, if it has ended."""
    wanted = [next(work)]
    for answer in answers:
        try:
            wanted.append(work.send(answer))
        except StopIteration as end:
            return wanted, end.value
    return wanted, None


def names(wanted: list[Operation]) -> list[str]:
    return [type(operation).__name__ for operation in wanted]


def test_new_instance() -> None:
    wanted, handled = play(work_of(PLACE), Found(None, None, "new"), None)

    assert names(wanted) == ["Find", "Insert"]
    assert isinstance(wanted[1], Insert)
    assert (wanted[1].new.id, json.loads(wanted[1].new.data)["total"]) == ("new", 1)
    assert handled is not None
    assert (handled.outcome.kind, handled.outcome.instance_id) == (Kind.STARTED, "new")
    assert [row.task for row in handled.outgoing] == ["charge"]


def test_existing_instance() -> None:
    wanted, handled = play(work_of(PLACE), Found(RECORD, None, "new"), None)

    assert names(wanted) == ["Find", "Update"]
    assert isinstance(wanted[1], Update)
    assert (wanted[1].record, json.loads(wanted[1].change.data)["total"]) == (RECORD, 8)
    assert handled is not None
    assert (handled.outcome.kind, handled.outcome.version) == (Kind.HANDLED, 4)


def test_missing_instance() -> None:
    wanted, handled = play(work_of(PAY), Found(None, None, "new"), None, None)

    assert names(wanted) == ["Find", "OutcomeOf", "Write"]
    assert wanted[1] == OutcomeOf(("order",), "42")
    assert isinstance(wanted[2], Write)
    assert handled is not None
    assert (handled.outcome.kind, handled.outcome.reason) == (Kind.IGNORED, "missing")


def test_message_that_was_handled_before() -> None:
    entry = Entry(PLACE.name, "m1", "a", "handled", "order", "42", "i1", 3, "{}")
    wanted, handled = play(work_of(PLACE), Found(RECORD, entry, "new"))

    assert names(wanted) == ["Find"]
    assert handled is not None
    assert (handled.outcome.kind, handled.handled_before, handled.outgoing) == (Kind.DUPLICATE, entry, ())


def test_delivery_is_counted_right_before_the_handler() -> None:
    wanted, _ = play(work_of(PLACE, max_deliveries=2), Found(RECORD, None, "new"), 1)
    assert names(wanted) == ["Find", "CountDelivery", "Update"]

    with pytest.raises(TooManyDeliveries):
        play(work_of(PLACE, max_deliveries=2), Found(RECORD, None, "new"), 2)


def test_instance_is_locked_and_found_again_after_many_conflicts() -> None:
    locked = Found(RECORD._replace(locked_by="me"), None, "new")
    wanted, _ = play(work_of(PLACE, Attempt("me", 9)), Found(RECORD, None, "new"), True, locked)
    assert wanted[1] == Lock(RECORD, "me", 9)
    assert names(wanted) == ["Find", "Lock", "Find", "Update"]

    with pytest.raises(RevisionConflict, match="locked"):
        play(work_of(PLACE, Attempt("me", 9)), Found(RECORD, None, "new"), False)


@pytest.mark.parametrize("error", [StoreUnavailable("memory://", "away"), AlreadyHandled("order.place", "m1"), RuntimeError()])
def test_interrupted_at_each_operation(error: Exception) -> None:
    """What is thrown comes out, and what the message causes belongs to no instance any more."""
    answers = [Found(RECORD, None, "new"), 1]
    for number in range(3):
        session = Session("m1", {"parcel": "1"})
        delivery = Delivery(PLACE, "m1", {"order_id": "42"}, session, lambda f, first, **rest: f(first, **rest), max_deliveries=9)
        work = handle_once(delivery, TERMS, Attempt())
        next(work)
        for answer in answers[:number]:
            work.send(answer)
        with pytest.raises(type(error)):
            work.throw(error)
        assert (session.causation, session.sending) == ({"parcel": "1"}, None)


def test_closed_in_the_middle() -> None:
    """By a process that ends: nothing more is wanted."""
    session = Session("m1")
    delivery = Delivery(PLACE, "m1", {"order_id": "42"}, session, lambda f, first, **rest: f(first, **rest))
    work = handle_once(delivery, TERMS, Attempt())
    next(work)
    work.send(Found(RECORD, None, "new"))
    work.close()
    assert session.causation == {}


class TestDriver:
    """Operations are performed one by one."""

    def test_delivery_is_counted_once_for_all_attempts(self, backend: MemoryBackend) -> None:
        driver = Driver(backend)

        def work() -> Steps[Any]:
            counted = yield CountDelivery("order.place", "m1")
            return counted

        assert [driver.drive(work()) for _ in range(3)] == [1, 1, 1]
        assert backend.deliveries.count("order.place", "m1") == 2

    @pytest.mark.parametrize("error", [RevisionConflict("order", "42", "version"), SystemExit()], ids=repr)
    def test_lock_ends_with_an_attempt_that_has_not_committed(
        self, backend: MemoryBackend, engine: Any, error: BaseException
    ) -> None:
        engine.handle(PLACE, order_id="42")
        record = engine.record()

        def work() -> Steps[Any]:
            assert (yield Lock(record, "me", 60_000))
            assert engine.record().locked_by == "me"
            raise error

        with pytest.raises(type(error)):
            Driver(backend).drive(work())
        assert engine.record().locked_by == ""

    def test_errors_of_the_store_are_thrown_into_the_work(self, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        def away(*_: object) -> Any:
            raise StoreUnavailable("memory://", "away")

        monkeypatch.setattr(backend.sagas, "find", away)

        def work() -> Steps[Any]:
            with pytest.raises(StoreUnavailable):
                yield Find(None)  # type: ignore[arg-type]
            return "gone on"

        assert Driver(backend).drive(work()) == "gone on"


def test_state_is_that_of_the_record() -> None:
    """What one attempt has changed, the next one does not see."""
    seen: list[int] = []

    def add(order: State, order_id: str) -> None:
        seen.append(order.total)  # type: ignore[attr-defined]
        order.total += 1  # type: ignore[attr-defined]

    step = handler(add)
    for _ in range(2):
        play(work_of(step), Found(RECORD, None, "new"))
    assert seen == [7, 7]
