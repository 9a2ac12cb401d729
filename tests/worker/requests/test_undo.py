"""Undoing what requests have done: which work is undone after which outcome, in which order, and what follows."""

from typing import Any

import pytest

from celery_sagas.testing.samples import effects
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.trips import HOUR, MONTH, Trips, app, held_back, hours_ago, on_every_store, tasks_of, trips

__all__ = ["app", "stored_app", "trips", "url"]

pytestmark = on_every_store

TICKET, NONE = ("ticket A",), ("A",)
#: Before the compensation, the outcome; what is undone at once; and then outcomes, each with all that is undone after it.
CELLS = [
    ("answer", True, [TICKET], []),
    ("answer", False, [NONE], []),
    *(
        cell
        for overdue in ("failure", "deadline", "doubt")
        for cell in [
            (overdue, True, [], [("answer", [TICKET])]),
            (overdue, False, [NONE], [("answer", [NONE, NONE])]),
        ]
    ),
    ("", True, None, [("answer", [TICKET])]),
    ("", False, None, [("answer", [NONE])]),
    *(
        cell
        for overdue in ("failure", "deadline", "doubt")
        for cell in [
            ("", True, None, [(overdue, []), ("answer", [TICKET])]),
            ("", False, None, [(overdue, [NONE]), ("answer", [NONE, NONE])]),
        ]
    ),
]


@pytest.mark.parametrize(("before", "takes", "at_once", "later"), CELLS)
def test_what_is_undone(worker: Worker, trips: Trips, before: str, takes: bool, at_once: Any, later: Any) -> None:
    """After each outcome, by an undo that takes the answer and by one that takes none; ``at_once`` is null: it is waited for."""
    with hours_ago():
        held = trips.hold(worker, undo=trips.cancel if takes else trips.cancel.si("A"))
    if before:
        trips.come(worker, held, before)
    told = trips.seen() if before else []
    assert len(told) == bool(before)

    trips.compensate(worker)
    worker.run()
    assert trips.args() == (at_once or [])
    assert trips.seen() == [*told, *(["undone"] if at_once is not None else [])]
    for came, cancelled in later:
        trips.come(worker, held, came)
        assert trips.args() == cancelled
        assert trips.seen() == [*told, "undone"]
    assert {run.undoes for run in trips.cancelled} <= {trips.ids["A"]}
    assert (trips.pending().undo.undoing, trips.pending().undoes, trips.dead()) == (None, 0, [])


@pytest.mark.parametrize("came", ["failure", "deadline", "doubt"])
@pytest.mark.parametrize("takes", [True, False])
def test_step_that_gets_the_failure_undoes_everything(worker: Worker, trips: Trips, takes: bool, came: str) -> None:
    """Also the work of the very request that has failed, if its undo takes no answer; and its late answer."""
    trips.send(worker, "A")
    worker.run()
    with hours_ago():
        held = trips.hold(worker, "B", undo=trips.cancel if takes else trips.cancel.si("B"))
    trips.on_failure = lambda trip: trip.compensate(then="undone")
    trips.come(worker, held, came)

    cancelled = [TICKET] if takes else [("B",), TICKET]
    assert trips.args() == cancelled
    assert trips.seen()[2:] == ["undone"]
    if came != "failure":
        trips.come(worker, held, "answer")
        assert trips.args() == [*cancelled, ("ticket B",) if takes else ("B",)]
    assert trips.seen()[2:] == ["undone"]


def test_instance_is_there_until_an_answer_is_undone_that_comes_meanwhile(worker: Worker, trips: Trips) -> None:
    """The step that ends it waits for that."""
    trips.send(worker, "A")
    worker.run()
    with hours_ago():
        held = trips.hold(worker, "B")
    trips.on_failure = lambda trip: trip.compensate(then="finished")
    trips.relay("deadline")
    worker.one()
    (undo,) = held_back(worker)
    worker.deliver_again(held)
    worker.one()
    worker.deliver_again(undo)
    worker.run()

    assert trips.args() == [TICKET, ("ticket B",)]
    assert trips.saga.find("7") is None


@pytest.mark.parametrize("takes", [True, False])
class TestWaitingForItsTime:
    """A request with ``after=`` whose message is not due."""

    def test_is_withdrawn(self, worker: Worker, trips: Trips, takes: bool) -> None:
        trips.send(worker, after=HOUR, undo=trips.cancel if takes else trips.cancel.si("A"))
        assert trips.rows() == 2  # its message, and its deadline
        trips.compensate(worker)
        worker.run()

        assert (trips.rows(), trips.booked, trips.args(), trips.seen()) == (0, [], [], ["undone"])

    def test_is_undone_if_it_was_just_being_sent(self, worker: Worker, trips: Trips, takes: bool) -> None:
        with hours_ago():
            trips.send(worker, after=HOUR, undo=trips.cancel if takes else trips.cancel.si("A"), within=MONTH)
            (row,) = trips.claim()
            trips.compensate(worker)
            worker.run()
            assert trips.seen() == ["undone"]
        runtime_of(trips.app).publisher.publish(row)
        worker.run()

        assert trips.booked == ["A"]
        assert trips.args() == [TICKET if takes else NONE]
        assert trips.seen() == ["undone"]

    def test_is_never_sent_by_the_step_that_compensates(self, worker: Worker, trips: Trips, takes: bool) -> None:
        undo = trips.cancel if takes else trips.cancel.si("A")

        def act(trip: Any) -> None:
            trip.send(trips.book.s("A"), then="came", otherwise="failed", within=HOUR, undo=undo)
            trip.compensate(then="undone")

        trips.do(worker, act)
        worker.run()

        assert (trips.rows(), trips.booked, trips.args(), trips.seen()) == (0, [], [], ["undone"])
        assert trips.pending().requests == {}


class TestOrder:
    """What depends on another came later, and is undone before it."""

    def test_last_outcome_is_undone_first(self, worker: Worker, trips: Trips) -> None:
        """Whatever was sent first."""
        held = {what: trips.hold(worker, what) for what in "ABC"}
        for what in "BCA":
            trips.come(worker, held[what], "answer")
        trips.compensate(worker)
        worker.run()

        assert trips.args() == [("ticket A",), ("ticket C",), ("ticket B",)]
        assert [run.undoes for run in trips.cancelled] == [trips.ids[what] for what in "ACB"]
        assert trips.seen()[-1] == "undone"

    def test_open_ones_come_before_it_the_last_sent_first(self, worker: Worker, trips: Trips) -> None:
        held = {what: trips.hold(worker, what) for what in "ABC"}
        trips.come(worker, held["A"], "answer")
        trips.compensate(worker)
        trips.come(worker, held["B"], "answer")
        assert trips.args() == []
        trips.come(worker, held["C"], "answer")

        assert trips.args() == [("ticket C",), ("ticket B",), ("ticket A",)]

    def test_one_after_the_other(self, worker: Worker, trips: Trips) -> None:
        """The message of the second one does not exist before the first one has answered."""
        for what in "AB":
            trips.send(worker, what)
            worker.run()
        trips.compensate(worker)
        (first,) = held_back(worker)
        assert (first.task, first.args) == ("cancel", ["ticket B"])
        assert trips.trip().saga.undoing
        worker.deliver_again(first)
        assert tasks_of(worker.waiting()) == ["trip.(undone)"]
        worker.one()
        assert [delivered.args for delivered in worker.waiting()] == [["ticket A"]]
        worker.run()

        assert trips.seen()[-1] == "undone"
        assert not trips.trip().saga.undoing

    def test_in_parallel(self, worker: Worker, trips: Trips) -> None:
        for what in "ABC":
            trips.send(worker, what)
            worker.run()
        open_one = trips.hold(worker, "D")
        trips.compensate(worker, parallel=True)
        assert [delivered.args for delivered in worker.waiting()] == [["ticket C"], ["ticket B"], ["ticket A"]]
        worker.run()
        assert trips.seen()[-1] == "came ticket C"
        trips.come(worker, open_one, "answer")

        assert trips.args()[-1] == ("ticket D",)
        assert trips.seen()[-1] == "undone"

    def test_never_overtakes_the_work(self, worker: Worker, trips: Trips) -> None:
        """The participant has not begun it when everything is undone."""
        held = trips.hold(worker, undo=trips.cancel.si("A"))
        trips.compensate(worker)
        assert worker.waiting() == []
        worker.deliver_again(held)
        assert (trips.booked, trips.args()) == (["A"], [])
        worker.run()

        assert trips.args() == [NONE]


class TestThen:
    """The step that runs when everything is undone."""

    def test_runs_with_nothing_to_undo(self, worker: Worker, trips: Trips) -> None:
        trips.compensate(worker)
        (then,) = worker.waiting()
        assert then.task == "trip.undone"
        worker.run()

        assert trips.seen() == ["undone"]
        assert not trips.trip().saga.undoing

    def test_gets_its_own_arguments(self, worker: Worker, trips: Trips) -> None:
        trips.compensate(worker, then=trips.saga.undone.s("so it is"))
        worker.run()

        assert trips.seen() == ["undone so it is"]

    def test_runs_once_however_often_its_message_comes(self, worker: Worker, trips: Trips) -> None:
        trips.compensate(worker)
        then = worker.one()
        worker.deliver_again(then)

        assert trips.seen() == ["undone"]

    def test_is_a_message_of_this_very_instance(self, worker: Worker, trips: Trips) -> None:
        trips.compensate(worker)
        (then,) = held_back(worker)
        first = trips.trip().saga.id
        assert then.headers["saga_address"]["instance"] == first
        backend_of(trips.app).sagas.delete(trips.record(), effects(trips.record()))
        trips.do(worker, lambda trip: None)
        assert trips.trip().saga.id != first
        worker.deliver_again(then)

        assert trips.seen() == []

    def test_completes_the_instance(self, worker: Worker, trips: Trips) -> None:
        trips.send(worker)
        worker.run()
        trips.compensate(worker, then="finished")
        worker.run()

        assert (trips.saga.find("7"), trips.rows(), trips.dead()) == (None, 0, [])
        assert trips.saga.outcome("7").step == "trip.finished"

    def test_is_not_needed(self, worker: Worker, trips: Trips) -> None:
        trips.send(worker)
        worker.run()
        trips.compensate(worker, then=None)
        assert trips.trip().saga.undoing
        worker.run()

        assert trips.args() == [TICKET]
        assert not trips.trip().saga.undoing

    def test_waits_for_an_answer_that_came_before_it(self, worker: Worker, trips: Trips) -> None:
        """The overdue booking answers when everything else is undone, and ``then`` is on its way."""
        with hours_ago():
            held = trips.hold(worker)
        trips.come(worker, held, "deadline")
        trips.compensate(worker)
        (then,) = held_back(worker)
        assert trips.trip().saga.undoing
        trips.come(worker, held, "answer")
        assert trips.args() == [TICKET]
        assert trips.seen() == ["failed deadline", "undone"]
        worker.deliver_again(then)  # it was withdrawn

        assert trips.seen() == ["failed deadline", "undone"]

    def test_is_that_of_the_second_call(self, worker: Worker, trips: Trips) -> None:
        trips.send(worker, "A")
        worker.run()
        trips.compensate(worker, then=trips.saga.undone.s("first"))
        (first,) = held_back(worker)
        trips.send(worker, "B")
        (sent,) = held_back(worker)
        trips.come(worker, sent, "answer")
        trips.compensate(worker, then=trips.saga.undone.s("second"))
        assert worker.waiting() == []  # the undo of A is under way
        worker.deliver_again(first)
        worker.run()

        assert trips.args() == [("ticket A",), ("ticket B",)]
        assert trips.seen() == ["came ticket A", "came ticket B", "undone second"]

    @pytest.mark.parametrize("is_same_step", [True, False])
    def test_of_the_first_call_does_not_run_if_it_was_called_again(
        self, worker: Worker, trips: Trips, is_same_step: bool
    ) -> None:
        """Its message is on its way already."""
        first, second = ({"then": trips.saga.undone.s(note)} for note in ("first", "second"))
        if is_same_step:
            trips.do(worker, lambda trip: [trip.compensate(**first), trip.compensate(**second)])
        else:
            trips.compensate(worker, **first)
            (sent,) = held_back(worker)
            trips.compensate(worker, **second)
            trips.send_again(sent)
        worker.run()

        assert trips.seen() == ["undone second"]
        assert not trips.trip().saga.undoing
