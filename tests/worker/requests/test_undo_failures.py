"""Undos that fail, messages that come twice, and commits that meet others."""

import json
import time
from collections import Counter
from typing import Any

import pytest

from celery_sagas import Backoff, clock
from celery_sagas.errors import MisuseError
from celery_sagas.stores.records import Change
from celery_sagas.testing.samples import effects
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, interposed
from tests.every_store import stored_app, url
from tests.worker.requests.trips import HOUR, MONTH, Trips, app, held_back, hours_ago, on_every_store, trips

__all__ = ["app", "stored_app", "trips", "url"]

pytestmark = on_every_store

TWICE = Backoff(2, first=10, most=15)
ONCE = Backoff(0)


def book(trips: Trips, worker: Worker, *whats: str) -> None:
    """Have the trip 7 book, and get the answers."""
    for what in whats:
        trips.send(worker, what)
        worker.run()


def until_given_up(trips: Trips, worker: Worker) -> None:
    """Run whatever is due until nothing is: undos that are tried again are, one after the other."""
    worker.run()
    while trips.relay():
        worker.run()


class TestTriedAgain:
    """An undo that fails is sent again after a pause, under a new id."""

    def test_pauses_double(self, worker: Worker, trips: Trips) -> None:
        book(trips, worker, "A")
        trips.stuck = {"ticket A"}
        began = time.time() - 7200
        with clock.replaced_by(lambda: began):
            trips.compensate(worker, retry=Backoff(4, first=10, most=30), within=MONTH)
            pauses, ids = [], []
            for _ in range(4):
                worker.run()
                (asked,) = trips.pending().requests.values()
                pauses.append(round(asked.sent_at / 1000 - began, 2))
                ids.append(asked.id)
                assert trips.relay() == 1
            trips.stuck = set()
            worker.run()

        assert pauses == [10, 20, 30, 30]
        assert len(set(ids)) == 4
        assert len(trips.cancelled) == 5
        assert set(trips.cancelled) == {(("ticket A",), trips.ids["A"])}
        assert trips.seen() == ["came ticket A", "undone"]

    def test_silence_counts(self, worker: Worker, trips: Trips) -> None:
        """Each time its message gets the time again, from when it is sent."""
        book(trips, worker, "A")
        with hours_ago():
            trips.compensate(worker, retry=TWICE, within=HOUR)
            held_back(worker)
            assert trips.relay() == 1  # the deadline
            worker.run()
            (asked,) = trips.pending().requests.values()
            assert asked.at - asked.sent_at == 3_600_000
            assert asked.again is not None
            assert asked.again.number == 1

    def test_answer_to_an_earlier_attempt_changes_nothing(self, worker: Worker, trips: Trips) -> None:
        book(trips, worker, "A")
        with hours_ago():
            trips.compensate(worker, retry=TWICE, within=HOUR)
            (held,) = held_back(worker)
            assert trips.relay() == 1
            worker.run()
        before = trips.pending()
        worker.deliver_again(held)
        worker.run()

        assert trips.pending() == before
        assert trips.seen() == ["came ticket A"]

    def test_everything_else_waits(self, worker: Worker, trips: Trips) -> None:
        book(trips, worker, "A", "B")
        trips.stuck = {"ticket B"}
        trips.compensate(worker)
        worker.run()

        assert trips.args() == [("ticket B",)]
        assert worker.waiting() == []
        assert trips.trip().saga.undoing


class TestDeadLetter:
    """An undo that has failed for good waits for a person."""

    @pytest.fixture
    def given_up(self, worker: Worker, trips: Trips) -> Any:
        """The dead letter."""
        book(trips, worker, "A", "B")
        trips.stuck = {"ticket B"}
        with hours_ago():
            trips.compensate(worker, retry=TWICE, within=MONTH)
            until_given_up(trips, worker)
        (dead_letter,) = trips.dead()
        return dead_letter

    def test_says_what_has_failed(self, worker: Worker, trips: Trips, given_up: Any) -> None:
        assert trips.args() == [("ticket B",)] * 3
        assert (given_up.task, given_up.saga, given_up.key, given_up.error) == ("trip.(undone)", "trip", "7", "UndoFailed")
        assert "cancel could not undo what trip '7' has done, in 3 attempts: " in given_up.text
        assert "Boom: cannot cancel ticket B" in given_up.text
        assert trips.rows() == 0
        assert trips.trip().saga.undoing

    def test_retry_begins_anew(self, worker: Worker, trips: Trips, given_up: Any) -> None:
        with hours_ago():
            assert retry_dead_letter(runtime_of(trips.app), given_up).id
            until_given_up(trips, worker)
        assert trips.args() == [("ticket B",)] * 6
        (second,) = trips.dead()
        assert (second.error, second.id != given_up.id) == ("UndoFailed", True)

        trips.stuck = set()
        assert retry_dead_letter(runtime_of(trips.app), second).id
        worker.run()
        assert trips.args()[6:] == [("ticket B",), ("ticket A",)]
        assert trips.seen()[-1] == "undone"
        assert trips.dead() == []

    def test_discard_counts_as_undone(self, worker: Worker, trips: Trips, given_up: Any) -> None:
        runtime = runtime_of(trips.app)
        assert discard_dead_letter(runtime, given_up)
        assert discard_dead_letter(runtime, given_up)  # it was interrupted before
        worker.run()

        assert trips.args() == [("ticket B",)] * 3 + [("ticket A",)]
        assert trips.seen()[-1] == "undone"
        assert (trips.dead(), trips.rows()) == ([], 0)
        assert not discard_dead_letter(runtime, given_up)

    def test_answer_that_comes_after_all(self, worker: Worker, trips: Trips) -> None:
        book(trips, worker, "A")
        with hours_ago():
            trips.compensate(worker, retry=ONCE, within=HOUR)
            (held,) = held_back(worker)
            until_given_up(trips, worker)
        (dead_letter,) = trips.dead()
        assert "nothing had come when the time was over" in dead_letter.text
        worker.deliver_again(held)
        worker.run()

        assert trips.seen()[-1] == "undone"
        assert retry_dead_letter(runtime_of(trips.app), dead_letter).reason
        assert trips.dead() == []

    def test_others_go_on_in_parallel(self, worker: Worker, trips: Trips) -> None:
        book(trips, worker, "A", "B", "C")
        trips.stuck = {"ticket B"}
        trips.compensate(worker, retry=ONCE, parallel=True)
        worker.run()
        assert sorted(trips.args()) == [("ticket A",), ("ticket B",), ("ticket C",)]
        assert trips.seen()[-1] == "came ticket C"
        (dead_letter,) = trips.dead()
        discard_dead_letter(runtime_of(trips.app), dead_letter)
        worker.run()

        assert trips.seen()[-1] == "undone"

    def test_of_an_undo_that_runs_by_itself(self, worker: Worker, trips: Trips) -> None:
        """The overdue booking answers when the compensation is over."""
        with hours_ago():
            held = trips.hold(worker)
        trips.come(worker, held, "deadline")
        trips.compensate(worker)
        worker.run()
        trips.stuck = {"ticket A"}
        with hours_ago(0.5):
            trips.come(worker, held, "answer")
            (asked,) = [each for each in trips.pending().requests.values() if each.undoes]
            assert asked.again is not None
            assert asked.again.retry == (10, 10.0, 3600.0, 2.0)
        trips.stuck = set()
        assert trips.trip().saga.undoing
        assert trips.relay() == 1
        worker.run()

        assert trips.args() == [("ticket A",)] * 2
        assert trips.seen() == ["failed deadline", "undone"]


class TestComplete:
    """An instance does not end while anything of it is being undone."""

    def test_is_refused_and_nothing_is_lost(self, worker: Worker, trips: Trips) -> None:
        book(trips, worker, "A", "B")
        trips.compensate(worker)
        (held,) = held_back(worker)
        trips.saga.end.delay("7")
        error = worker.one().error
        assert isinstance(error, MisuseError)
        assert str(error).startswith("trip '7' is being undone, 2 are left. Complete it in the step that compensate(then=)")
        (dead_letter,) = trips.dead()
        worker.deliver_again(held)
        worker.run()
        assert trips.seen()[-1] == "undone"
        retry_dead_letter(runtime_of(trips.app), dead_letter)
        worker.run()

        assert (len(trips.cancelled), trips.saga.find("7"), trips.dead()) == (2, None, [])

    @pytest.mark.parametrize("is_first", [True, False])
    def test_is_refused_in_the_step_that_compensates(self, worker: Worker, trips: Trips, is_first: bool) -> None:
        def act(trip: Any) -> None:
            calls = [trip.complete, trip.compensate]
            for call in calls if is_first else calls[::-1]:
                call()

        book(trips, worker, "A")
        error = trips.do(worker, act).error
        assert isinstance(error, MisuseError)
        worker.run()

        assert (trips.seen(), trips.args()) == (["came ticket A"], [])
        assert not trips.trip().saga.undoing

    def test_is_refused_while_an_undo_runs_by_itself(self, worker: Worker, trips: Trips) -> None:
        with hours_ago():
            held = trips.hold(worker)
        trips.come(worker, held, "deadline")
        trips.compensate(worker)
        worker.run()
        worker.deliver_again(held)
        worker.one()
        (undo,) = held_back(worker)
        trips.saga.end.delay("7")
        assert isinstance(worker.one().error, MisuseError)
        worker.deliver_again(undo)
        worker.run()
        trips.saga.end.delay("7")
        worker.run()

        assert trips.saga.find("7") is None


def journey(trips: Trips, worker: Worker, run: Any) -> None:
    """Book three; the last one fails; undo them, and fail to undo one at first."""
    for what in "AB":
        trips.send(worker, what, undo=trips.cancel.si(what))
        run()
    trips.failing, trips.stuck = {"C"}, {"B"}
    trips.send(worker, "C")
    run()
    with hours_ago():
        trips.compensate(worker, retry=TWICE, within=MONTH)
        run()
        trips.stuck = set()
        trips.relay()
        run()


DONE = ["came ticket A", "came ticket B", "failed error", "undone"]


def test_messages_that_come_twice(worker: Worker, trips: Trips) -> None:
    """Each step handles the first of them; tasks run twice, as any task may."""
    times: Counter[str] = Counter()

    def run() -> None:
        while (delivered := worker.step()) is not None:
            times[delivered.id] += 1
            if delivered.task == "cancel":
                trips.stuck = set()  # the repeat works, and then the next attempt
            if times[delivered.id] == 1:
                trips.send_again(delivered)

    journey(trips, worker, run)

    assert trips.seen() == DONE
    assert trips.args()[-2:] == [("A",), ("A",)]
    outcomes = Counter(entry.outcome for entry in trips.entries())
    assert outcomes["undone"] == 3  # one failure, and two answers
    assert (trips.rows(), trips.dead()) == (0, [])
    assert all(request.has_timed_out for request in trips.pending().requests.values())  # another run may still answer


def test_commits_that_meet_others(worker: Worker, trips: Trips) -> None:
    """Another message of the instance commits before each of them."""
    store = interposed(trips.app)

    def rival() -> None:
        record = trips.record()
        store.inner.update(record, Change(("trip",), 1, record.data, record.pending), effects(record))

    store.once_before("update", *[rival, lambda: None] * 20)
    journey(trips, worker, worker.run)

    assert trips.seen() == DONE
    assert trips.args() == [("B",), ("B",), ("A",)]
    assert store.calls.count("update") >= 14
    assert (trips.rows(), trips.dead()) == (0, [])
    assert all(request.has_timed_out for request in trips.pending().requests.values())  # another run may still answer


def test_journal_tells_of_undos(worker: Worker, trips: Trips) -> None:
    book(trips, worker, "A")
    trips.compensate(worker)
    worker.run()

    (entry,) = [entry for entry in trips.entries() if entry.outcome == "undone"]
    detail = json.loads(entry.detail)
    assert (entry.step, detail["came"], detail["undoes"]) == ("trip.(undone)", "answer", trips.ids["A"])
