"""Requests that are sent again when they have failed."""

import json
import time
from decimal import Decimal
from typing import Any

import pytest
from celery.app.task import Context

from celery_sagas import Backoff, clock
from celery_sagas.core.requests.requests import ReplyKind
from celery_sagas.worker import runtime as runtimes
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.headers import answer_headers
from tests.apps import Worker
from tests.every_store import stored_app, url
from tests.worker.requests.trips import HOUR, MONTH, Trips, app, held_back, hours_ago, on_every_store, trips

__all__ = ["app", "stored_app", "trips", "url"]

pytestmark = on_every_store

TWICE = Backoff(2, first=10, most=15)
PLAIN: dict[str, Any] = {"retry": TWICE, "undo": None, "within": None}


def open_request(trips: Trips) -> Any:
    """Return the one request that is not overdue."""
    (asked,) = [each for each in trips.pending().requests.values() if not each.has_timed_out]
    return asked


@pytest.mark.parametrize(("kind", "come"), [("error", "failure"), ("lost", "doubt"), ("deadline", "deadline")])
def test_failure_is_tried_again(worker: Worker, trips: Trips, kind: str, come: str) -> None:
    """Under a new id, after a pause, and with the time that it was given; ``otherwise`` is told of the last failure alone."""
    began = time.time() - 7200
    with clock.replaced_by(lambda: began):
        held, ids = trips.hold(worker, retry=TWICE, undo=None), []
        for pause in (10, 15):
            trips.come(worker, held, come)
            asked = open_request(trips)
            ids.append(asked.id)
            assert held_back(worker) == []
            assert asked.sent_at == pytest.approx((began + pause) * 1000, abs=1)
            assert asked.at - asked.sent_at == pytest.approx(3_600_000, abs=1)
            assert trips.relay("sent") == 1
            (held,) = held_back(worker)
            assert (held.id, held.args) == (asked.id, ["A"])
            assert trips.seen() == []
        trips.come(worker, held, come)

    assert len({trips.ids["A"], *ids}) == 3
    assert trips.seen() == [f"failed {kind}"]
    assert trips.rows() == 0


def test_revoked_one_is_not(worker: Worker, trips: Trips) -> None:
    held = trips.hold(worker, **PLAIN)
    request = Context(dict(held.headers), headers=dict(held.headers), id=held.id, task="book")
    assert notify_requester(trips.app, request, "revoked", "revoked")
    worker.run()

    assert trips.seen() == ["failed revoked"]
    assert trips.rows() == 0


def test_answer_to_the_second_attempt(worker: Worker, trips: Trips) -> None:
    with hours_ago():
        trips.failing = {"A"}
        trips.send(worker, **PLAIN)
        worker.run()
        trips.failing = set()
        assert trips.relay() == 1
        worker.run()

    assert trips.seen() == ["came ticket A"]
    assert trips.rows() == 0
    assert [each.id for each in trips.pending().requests.values()] == [trips.ids["A"]]  # it may still answer
    assert not trips.trip().saga.requests


class TestTwoAnswers:
    """The first attempt was slow, and not lost."""

    @pytest.fixture
    def second(self, worker: Worker, trips: Trips, request: pytest.FixtureRequest) -> Any:
        """The first attempt's message, and the second's; or null while that waits for the end of its pause."""
        undo, waits = request.param
        with hours_ago():
            first = trips.hold(worker, retry=TWICE, undo=trips.cancel if undo else None)
            assert trips.relay() == 1
        with hours_ago(0 if waits else 0.5):
            worker.run()
        trips.relay()
        return first, next(iter(held_back(worker)), None)

    @pytest.mark.parametrize("second", [(True, False)], indirect=True)
    def test_second_is_undone_at_once(self, worker: Worker, trips: Trips, second: Any) -> None:
        for held in second:
            worker.deliver_again(held)
            worker.run()

        assert trips.seen() == ["came ticket A"]
        (cancelled,) = trips.cancelled
        assert cancelled == (("ticket A",), second[1].id)
        assert trips.rows() == 0
        trips.compensate(worker)
        worker.run()
        assert [run.undoes for run in trips.cancelled] == [second[1].id, trips.ids["A"]]

    @pytest.mark.parametrize("second", [(True, False)], indirect=True)
    def test_first_is_undone_if_it_comes_second(self, worker: Worker, trips: Trips, second: Any) -> None:
        for held in second[::-1]:
            worker.deliver_again(held)
            worker.run()

        assert trips.seen() == ["came ticket A"]
        assert trips.cancelled == [(("ticket A",), second[0].id)]

    @pytest.mark.parametrize("second", [(False, False)], indirect=True)
    def test_second_is_late_without_an_undo(self, worker: Worker, trips: Trips, second: Any) -> None:
        for held in second:
            worker.deliver_again(held)
            worker.run()

        assert trips.seen() == ["came ticket A", "came ticket A late"]

    @pytest.mark.parametrize("second", [(True, True), (False, True)], indirect=True)
    def test_second_is_not_sent_after_the_first(self, worker: Worker, trips: Trips, second: Any) -> None:
        """It waits for the end of its pause."""
        first, none = second
        assert none is None
        assert trips.rows() == 2
        worker.deliver_again(first)
        worker.run()

        assert trips.seen() == ["came ticket A"]
        assert trips.rows() == 0


@pytest.mark.parametrize("takes", [True, False])
def test_each_attempt_is_undone(worker: Worker, trips: Trips, takes: bool) -> None:
    """The first one has failed, the second one has answered."""
    with hours_ago(0.5):
        trips.failing = {"A"}
        trips.send(worker, retry=TWICE, undo=trips.cancel if takes else trips.cancel.si("A"), within=MONTH)
        worker.run()
        second = open_request(trips).id
        trips.failing = set()
        assert trips.relay() == 1
        worker.run()
    trips.compensate(worker)
    worker.run()

    assert [run.undoes for run in trips.cancelled] == ([second] if takes else [second, trips.ids["A"]])
    assert trips.seen() == ["came ticket A", "undone"]


def test_nothing_is_tried_again_while_it_is_undone(worker: Worker, trips: Trips) -> None:
    held = trips.hold(worker, retry=TWICE)
    trips.compensate(worker)
    trips.come(worker, held, "failure")

    assert trips.seen() == ["undone"]
    assert trips.rows() == 0


def test_one_that_waits_for_its_pause_is_withdrawn(worker: Worker, trips: Trips) -> None:
    trips.failing = {"A"}
    trips.send(worker, retry=TWICE, undo=trips.cancel.si("A"))
    worker.run()
    assert trips.rows() == 2
    trips.compensate(worker)
    worker.run()

    assert (trips.rows(), trips.seen()) == (0, ["undone"])
    assert [run.undoes for run in trips.cancelled] == [trips.ids["A"]]


def test_arguments_arrive_as_with_send(worker: Worker, trips: Trips) -> None:
    price = Decimal("9.50")
    with hours_ago():
        trips.failing = {price}
        trips.send(worker, price, **PLAIN)
        worker.run()
        trips.failing = set()
        assert trips.relay() == 1
        worker.run()

    assert trips.booked == [price]
    assert type(trips.booked[0]) is Decimal


def test_delay_of_its_own_is_that_of_the_first_attempt(worker: Worker, trips: Trips) -> None:
    began = time.time() - 7200
    trips.failing = {"A"}

    def act(trip: Any) -> None:
        trip.send(trips.book.s("A").set(countdown=50), then="came", otherwise="failed", retry=TWICE)

    with clock.replaced_by(lambda: began):
        trips.do(worker, act)
        assert open_request(trips).sent_at == pytest.approx((began + 50) * 1000, abs=1)
        trips.relay()
        worker.run()
        assert trips.dead() == []
        assert open_request(trips).sent_at == pytest.approx((began + 10) * 1000, abs=1)


def test_route_of_its_own_is_that_of_each_attempt(worker: Worker, trips: Trips) -> None:
    def act(trip: Any) -> None:
        sent = trips.book.s("A").set(queue=f"{trips.app.conf.task_default_queue}-slow", priority=3)
        trip.send(sent, then="came", otherwise="failed", retry=TWICE)

    with hours_ago():
        trips.do(worker, act)
        (asked,) = trips.pending().requests.values()
        failure = {"kind": "error", "task": "book", "task_id": asked.id}
        headers = answer_headers(trips.trip().saga.id, asked.id, ReplyKind.FAILURE, "error")
        trips.app.send_task("trip.failed", (failure,), headers=headers)
        worker.run()
        (row,) = trips.claim()

    options = json.loads(row.payload)["options"]
    assert (options["queue"], options["priority"]) == (f"{trips.app.conf.task_default_queue}-slow", 3)


def test_broadcast_that_fails_changes_nothing(worker: Worker, trips: Trips, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are asked not to begin what is cancelled; what counts is what the instance does."""

    def fail(*_: Any) -> None:
        raise OSError("the broker is away")

    monkeypatch.setattr(runtimes, "within", fail)
    held = trips.hold(worker, within=HOUR)
    trips.compensate(worker)
    trips.come(worker, held, "answer")

    assert (len(trips.cancelled), trips.seen()) == (1, ["undone"])
