"""Outcomes of requests that come in another status, and what their instance does with the requests, on every store."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Backoff
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.parcels import Parcels, app, define
from tests.worker.requests.trips import hours_ago, on_every_store

__all__ = ["app", "stored_app", "url"]

pytestmark = on_every_store

HOUR = timedelta(hours=1)


def undoing(app: Celery, if_not: str) -> Parcels:
    """Return a parcel that can undo what it has asked for."""
    parcels = define(app, if_not)

    @parcels.saga.handles
    def undone(parcel: Any) -> None:
        parcel.seen.append("undone")

    return parcels


def ask(parcels: Parcels, worker: Worker, **options: Any) -> None:
    """Ask; the outcome comes."""
    given = {"then": "came", "otherwise": "failed", "within": HOUR, **options}
    parcels.do(worker, lambda parcel: parcel.send(parcels.quote.si(1), **given))
    worker.run()


def compensate(parcels: Parcels, worker: Worker) -> None:
    """Undo everything."""
    parcels.do(worker, lambda parcel: parcel.compensate(then="undone"))
    worker.run()


@pytest.mark.parametrize("if_not", ["ignore", "defer"])
class TestUndo:
    def test_answer_that_waits_or_was_ignored(self, app: Celery, worker: Worker, if_not: str) -> None:
        """Its work was done, whatever the step has made of it."""
        parcels = undoing(app, if_not)
        ask(parcels, worker, undo=parcels.noted)
        assert (parcels.seen, len(parcels.waiting)) == ([], if_not == "defer")

        compensate(parcels, worker)
        assert (parcels.notes, parcels.seen, parcels.waiting) == ([1], ["undone"], [])
        parcels.become(worker, "sent")
        worker.run()
        assert (parcels.seen, parcels.dead) == (["undone"], [])
        assert backend_of(app).outbox.count() == 0
        parcels.replays()

    def test_failure_that_waits_or_was_ignored(self, app: Celery, worker: Worker, if_not: str) -> None:
        parcels = undoing(app, if_not)
        parcels.fails = True
        ask(parcels, worker, undo=parcels.noted.si("undo"))
        parcels.fails = False
        compensate(parcels, worker)
        assert (parcels.notes, parcels.seen, parcels.dead) == (["undo"], ["undone"], [])

    def test_request_that_is_cancelled(self, app: Celery, worker: Worker, if_not: str) -> None:
        parcels = undoing(app, if_not)
        cancelled: list[bool] = []
        ids: list[str] = []
        parcels.do(worker, lambda parcel: ids.append(parcel.send(parcels.quote.si(1), then="came", otherwise="failed")))
        worker.run()
        parcels.do(worker, lambda parcel: cancelled.append(parcel.cancel(ids[0])))
        worker.run()
        parcels.become(worker, "sent")
        worker.run()

        assert cancelled == [if_not == "defer"]
        assert (parcels.seen, parcels.waiting, parcels.dead) == ([], [], [])

    def test_undo_of_a_request_that_is_cancelled(self, app: Celery, worker: Worker, if_not: str) -> None:
        parcels = undoing(app, if_not)
        ids: list[str] = []
        options = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": parcels.noted}
        parcels.do(worker, lambda parcel: ids.append(parcel.send(parcels.quote.si(1), **options)))
        worker.run()
        parcels.do(worker, lambda parcel: parcel.cancel(ids[0]) and None)
        worker.run()
        assert (parcels.notes, parcels.waiting) == ([1] if if_not == "defer" else [], [])

    def test_end_of_the_compensation(self, app: Celery, worker: Worker, if_not: str) -> None:
        parcels = define(app, if_not)
        ask(parcels, worker, then=None, otherwise="failed", undo=parcels.noted)
        parcels.do(worker, lambda parcel: parcel.compensate(then="remind"))
        worker.run()
        assert (parcels.notes, parcels.seen) == ([1], [])
        assert parcels.parcel.saga.undoing is (if_not == "defer")

        parcels.become(worker, "lost")
        assert worker.run() == []
        parcels.become(worker, "sent")
        worker.run()
        assert (parcels.seen, parcels.parcel.saga.undoing) == (["reminded"] if if_not == "defer" else [], False)


class TestRetry:
    """A request that is sent again; two hours ago, so that its pauses are over."""

    def ask(self, parcels: Parcels, worker: Worker, failures: int) -> None:
        """Ask; the task fails so many times, of three at most."""
        options: dict[str, Any] = {"then": "came", "otherwise": "failed", "retry": Backoff(2, first=1.0)}
        with hours_ago():
            parcels.do(worker, lambda parcel: parcel.send(parcels.quote.si(1), **options))
            for attempt in range(3):
                parcels.fails = attempt < failures
                worker.run()
                parcels.relay()
        assert [each.task for each in worker.done].count("quote") == min(failures + 1, 3)

    def test_last_failure_waits(self, app: Celery, worker: Worker) -> None:
        """Those before it are sent again at once, in each status."""
        parcels = define(app, "defer")
        self.ask(parcels, worker, failures=3)
        assert parcels.waiting == ["parcel.failed"]

        parcels.become(worker, "sent")
        worker.run()
        assert (parcels.seen, parcels.dead) == (["failed error"], [])
        parcels.replays()

    def test_answer_waits(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer")
        self.ask(parcels, worker, failures=1)
        assert parcels.waiting == ["parcel.came"]

        parcels.become(worker, "sent")
        worker.run()
        assert (parcels.seen, parcels.dead) == (["came 1"], [])
