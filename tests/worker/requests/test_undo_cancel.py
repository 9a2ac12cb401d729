"""Requests that an instance stops waiting for."""

from typing import Any

import pytest

from celery_sagas import Backoff
from celery_sagas.engine.requests.gathering import buffer_of
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.trips import HOUR, Trips, app, held_back, hours_ago, on_every_store, trips

__all__ = ["app", "stored_app", "trips", "url"]

pytestmark = on_every_store


@pytest.fixture
def revoked(trips: Trips) -> list[str]:
    """The ids of the tasks that workers are asked not to begin."""
    ids: list[str] = []
    runtime_of(trips.app).revoke = ids.extend
    return ids


def cancel(trips: Trips, worker: Worker, id: str) -> bool:
    """Have the trip 7 stop waiting for a request; return what it is told."""
    told: list[bool] = []
    assert trips.do(worker, lambda trip: told.append(trip.cancel(id))).error is None
    return told[-1]


class TestWithoutUndo:
    """What comes of it is dropped."""

    @pytest.mark.parametrize("came", ["answer", "failure", "doubt"])
    def test_outcome_is_dropped(self, worker: Worker, trips: Trips, revoked: list[str], came: str) -> None:
        held = trips.hold(worker, undo=None)
        assert cancel(trips, worker, trips.ids["A"])
        assert (trips.rows(), trips.pending().requests, revoked) == (0, {}, [trips.ids["A"]])
        trips.come(worker, held, came)

        assert trips.seen() == []

    def test_its_deadline_is_withdrawn(self, worker: Worker, trips: Trips) -> None:
        with hours_ago():
            trips.hold(worker, undo=None)
            (row,) = trips.claim()
        assert cancel(trips, worker, trips.ids["A"])
        runtime_of(trips.app).publisher.publish(row)
        worker.run()

        assert (trips.seen(), trips.rows()) == ([], 0)

    def test_delayed_message_is_not_sent(self, worker: Worker, trips: Trips) -> None:
        trips.send(worker, undo=None, after=HOUR)
        assert trips.rows() == 2
        assert cancel(trips, worker, trips.ids["A"])

        assert (trips.rows(), trips.pending().requests) == (0, {})

    def test_of_the_same_step_is_never_sent(self, worker: Worker, trips: Trips) -> None:
        told: list[bool] = []

        def act(trip: Any) -> None:
            told.append(trip.cancel(trip.send(trips.book.s("A"), then="came", otherwise="failed", within=HOUR)))
            told.append(trip.cancel(trip.send(trips.book.s("B") | trips.book.s(), then="came")))
            trip.send(trips.book.s("C"), then="came")

        trips.do(worker, act)
        worker.run()

        assert (told, trips.booked, trips.rows()) == ([True, True], ["C"], 0)
        assert trips.seen() == ["came ticket C"]

    def test_overdue_one(self, worker: Worker, trips: Trips) -> None:
        """It has an outcome, and its late answer is dropped."""
        with hours_ago():
            held = trips.hold(worker, undo=None)
        trips.come(worker, held, "deadline")
        assert not cancel(trips, worker, trips.ids["A"])
        trips.come(worker, held, "answer")

        assert trips.seen() == ["failed deadline"]

    @pytest.mark.parametrize("is_retry_due", [True, False])
    def test_retried_one_is_known_by_its_first_id(self, worker: Worker, trips: Trips, is_retry_due: bool) -> None:
        trips.failing = {"A"}
        with hours_ago(1 if is_retry_due else 0):
            trips.send(worker, undo=None, within=None, retry=Backoff(2))
            worker.run()
        if is_retry_due:
            assert trips.relay() == 1
        held = held_back(worker)
        assert len(held) == is_retry_due
        assert cancel(trips, worker, trips.ids["A"])
        assert (trips.rows(), trips.pending().requests) == (0, {})
        for message in held:
            trips.come(worker, message, "answer")

        assert trips.seen() == []


class TestWithUndo:
    """What has been done is undone, as if everything were."""

    @pytest.mark.parametrize(
        ("takes", "came", "args"),
        [
            (True, "answer", [("ticket A",)]),
            (False, "answer", [("A",)]),
            (True, "failure", []),
            (False, "failure", [("A",)]),
            (True, "deadline", []),
            (False, "deadline", [("A",)]),
        ],
    )
    def test_outcome_is_undone(self, worker: Worker, trips: Trips, revoked: list[str], takes: bool, came: str, args: Any) -> None:
        with hours_ago():
            held = trips.hold(worker, undo=trips.cancel if takes else trips.cancel.si("A"))
        assert cancel(trips, worker, trips.ids["A"])
        assert revoked == ([] if takes else [trips.ids["A"]])  # its answer alone says what was done
        trips.come(worker, held, came)
        assert (trips.args(), trips.seen(), trips.rows()) == (args, [], 0)
        if came == "deadline":
            trips.come(worker, held, "answer")
            assert trips.args() == [*args, ("ticket A",) if takes else ("A",)]

        assert not trips.trip().saga.undoing

    def test_others_are_not_undone(self, worker: Worker, trips: Trips) -> None:
        for what in "AB":
            trips.send(worker, what)
            worker.run()
        held = trips.hold(worker, "C")
        assert not cancel(trips, worker, trips.ids["A"])
        assert cancel(trips, worker, trips.ids["C"])
        trips.come(worker, held, "answer")

        assert trips.args() == [("ticket C",)]
        trips.compensate(worker)
        worker.run()
        assert trips.args() == [("ticket C",), ("ticket B",), ("ticket A",)]

    def test_is_waited_for_by_a_compensation(self, worker: Worker, trips: Trips) -> None:
        """Its work may be done after everything else is undone: the instance must be there."""
        trips.send(worker, "A")
        worker.run()
        held = trips.hold(worker, "B")
        assert cancel(trips, worker, trips.ids["B"])
        trips.compensate(worker, then="finished")
        worker.run()
        assert trips.args() == []
        trips.come(worker, held, "answer")

        assert trips.args() == [("ticket B",), ("ticket A",)]
        assert trips.saga.find("7") is None

    def test_instance_may_complete_before_it(self, worker: Worker, trips: Trips) -> None:
        held = trips.hold(worker)
        assert cancel(trips, worker, trips.ids["A"])
        assert not trips.trip().saga.undoing
        assert trips.do(worker, lambda trip: trip.complete()).error is None
        trips.come(worker, held, "answer")

        assert (trips.args(), trips.saga.find("7")) == ([], None)

    def test_instance_does_not_complete_while_it_is_undone(self, worker: Worker, trips: Trips) -> None:
        held = trips.hold(worker)
        assert cancel(trips, worker, trips.ids["A"])
        worker.deliver_again(held)
        worker.one()
        assert trips.trip().saga.undoing
        (undo,) = held_back(worker)
        error = trips.do(worker, lambda trip: trip.complete()).error
        assert str(error).startswith("trip '7' is being undone, 1 is left. ")
        worker.deliver_again(undo)
        worker.run()

        assert trips.do(worker, lambda trip: trip.complete()).error is None
        assert (trips.args(), trips.saga.find("7")) == ([("ticket A",)], None)

    def test_is_waited_for_once(self, worker: Worker, trips: Trips) -> None:
        """However often it is called."""
        held = trips.hold(worker)
        trips.compensate(worker)
        trips.compensate(worker)
        assert not cancel(trips, worker, trips.ids["A"])
        trips.come(worker, held, "answer")

        assert (trips.args(), trips.seen()) == ([("ticket A",)], ["undone"])

    def test_delayed_message_is_not_sent(self, worker: Worker, trips: Trips) -> None:
        trips.send(worker, after=HOUR)
        assert cancel(trips, worker, trips.ids["A"])

        assert (trips.rows(), trips.args()) == (0, [])
        assert not trips.trip().saga.undoing


class TestUnknown:
    """Nothing is done."""

    def test_id(self, worker: Worker, trips: Trips) -> None:
        assert not cancel(trips, worker, "no such id")

    @pytest.mark.parametrize("undo", [True, False])
    def test_answered_request(self, worker: Worker, trips: Trips, undo: bool) -> None:
        trips.send(worker, undo=trips.cancel if undo else None)
        worker.run()
        assert not cancel(trips, worker, trips.ids["A"])
        worker.run()

        assert trips.args() == []

    def test_undo(self, worker: Worker, trips: Trips) -> None:
        """What is being undone will be undone."""
        trips.send(worker)
        worker.run()
        trips.compensate(worker)
        (undo,) = held_back(worker)
        assert not cancel(trips, worker, undo.id)
        worker.deliver_again(undo)
        worker.run()

        assert trips.seen()[-1] == "undone"


class TestGather:
    """All its members are cancelled."""

    def gather(self, trips: Trips, worker: Worker, **options: Any) -> Any:
        """Have the trip 7 book two at once; the messages are held back."""
        options = {"then": "gathered", "otherwise": "gathered", "within": HOUR, **options}
        with hours_ago():
            trips.do(worker, lambda trip: trips.ids.update(g=trip.gather([trips.book.s(what) for what in "AB"], **options)))
        return held_back(worker)

    def collected(self, trips: Trips) -> int:
        """Return how many outcomes are kept beside instances."""
        return backend_of(trips.app).buffers.count(buffer_of("trip")).buffered

    def test_without_undo_what_was_collected_is_removed(self, worker: Worker, trips: Trips, revoked: list[str]) -> None:
        first, second = self.gather(trips, worker)
        worker.deliver_again(first)
        worker.run()
        assert self.collected(trips)
        assert cancel(trips, worker, trips.ids["g"])
        assert revoked == [first.id, second.id]
        assert (self.collected(trips), trips.rows()) == (0, 0)
        worker.deliver_again(second)
        worker.run()

        assert (trips.seen(), self.collected(trips)) == ([], 0)

    def test_with_undo_those_that_answer_are_undone(self, worker: Worker, trips: Trips, revoked: list[str]) -> None:
        first, _ = self.gather(trips, worker, undo=trips.cancel)
        worker.deliver_again(first)
        worker.run()
        assert cancel(trips, worker, trips.ids["g"])
        assert trips.args() == []
        assert trips.relay("deadline") == 1
        worker.run()

        assert trips.cancelled == [(("ticket A",), first.id)]
        assert trips.seen() == []
        assert revoked == []

    def test_of_the_same_step_is_never_sent(self, worker: Worker, trips: Trips) -> None:
        def act(trip: Any) -> None:
            members = [trips.book.s(what) for what in "AB"]
            assert trip.cancel(trip.gather(members, then="gathered", otherwise="gathered", within=HOUR, undo=trips.cancel))

        trips.do(worker, act)

        assert (worker.waiting(), trips.rows(), trips.pending().requests) == ([], 0, {})


@pytest.mark.parametrize("parallel", [True, False])
def test_each_member_of_a_gather_is_undone_by_itself(worker: Worker, trips: Trips, parallel: bool) -> None:
    """Those that have answered: by the id under which its work was sent."""
    trips.failing = {"B"}
    ids: dict[str, str] = {}

    def act(trip: Any) -> None:
        members = [trips.book.s(what) for what in "ABC"]
        trip.gather(members, then="gathered", otherwise="gathered", at_least=3, within=HOUR, undo=trips.cancel.s("all"))

    trips.do(worker, act)
    ids = {message.args[0]: message.id for message in worker.waiting()}
    worker.run()
    trips.compensate(worker, parallel=parallel)
    worker.run()

    cancelled = [(("ticket C", "all"), ids["C"]), (("ticket A", "all"), ids["A"])]
    assert trips.cancelled == cancelled
    assert trips.seen() == ["gathered", "undone"]


def test_open_gather_is_waited_for(worker: Worker, trips: Trips) -> None:
    first, second = TestGather().gather(trips, worker, undo=trips.cancel)
    trips.compensate(worker)
    worker.deliver_again(first)
    worker.run()
    assert (trips.args(), trips.seen()) == ([], [])
    worker.deliver_again(second)
    worker.run()

    assert trips.args() == [("ticket B",), ("ticket A",)]
    assert trips.seen() == ["undone"]


def test_step_that_gets_too_few_answers_undoes_them(worker: Worker, trips: Trips) -> None:
    @trips.saga.handles
    def too_few(trip: Any, gathered: Any) -> None:
        trip.seen.append("too few")
        trip.compensate(then="undone")

    trips.failing = {"B"}
    members = [trips.book.s(what) for what in "ABC"]
    options: Any = {"otherwise": "too_few", "within": HOUR, "undo": trips.cancel}
    trips.do(worker, lambda trip: trip.gather(members, then="gathered", **options) and None)
    worker.run()

    assert trips.args() == [("ticket C",), ("ticket A",)]
    assert trips.seen() == ["too few", "undone"]
