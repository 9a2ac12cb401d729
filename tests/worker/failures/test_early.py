"""Messages that come before their instance, on every store: parked, published by a relay, handled once, or failed in the end."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.headers import LOOKS, MESSAGE_ID
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.parcels import Parcels
from tests.worker.requests.trips import hours_ago, on_every_store

__all__ = ["stored_app", "url"]

pytestmark = on_every_store


@pytest.fixture
def app(stored_app: Celery) -> Celery:
    """An app on each store."""
    return stored_app


@pytest.fixture
def parcels(app: Celery) -> Parcels:
    """Parcels that are announced, delivered and scanned, in any order."""
    parcels = Parcels(app)

    class Parcel(Saga, correlate_by="number", also_by="code"):
        number: str
        code: str | None = None
        seen: list[str] = []

    @Parcel.starts
    def announce(parcel: Parcel, number: str, code: str) -> None:
        parcel.code = code

    @Parcel.handles(if_missing="defer", defer_for=timedelta(hours=1))
    def scan(parcel: Parcel, number: str) -> None:
        parcel.seen.append("scanned")

    @Parcel.handles(by="code", if_missing="defer", defer_for=timedelta(hours=1))
    def deliver(parcel: Parcel, code: str) -> str:
        parcel.seen.append("delivered")
        return "delivered"

    @Parcel.handles
    def end(parcel: Parcel, number: str) -> None:
        parcel.complete()

    @app.task(name="noted")
    def noted(what: Any = None) -> None:
        parcels.notes.append(what)

    Parcel.announce, Parcel.end = announce, end  # type: ignore[attr-defined]
    Parcel.scan, Parcel.deliver = scan, deliver  # type: ignore[attr-defined]
    parcels.saga, parcels.noted = Parcel, noted
    return parcels


def park(parcels: Parcels, worker: Worker, what: str, **options: Any) -> None:
    """Have a message come two hours ago, and again when it had waited for half a minute: it waits in the outbox since then."""
    step, value = (parcels.saga.scan, "1") if what == "key" else (parcels.saga.deliver, "c1")
    step.apply_async((value,), **options)
    with hours_ago(2):
        worker.one()
    with hours_ago(2 - 30 / 3600):
        worker.one()
    assert (worker.waiting(), backend_of(parcels.app).outbox.count()) == ([], 1)


every_key = pytest.mark.parametrize("what", ["key", "alternate key"])


@every_key
class TestParked:
    def test_is_handled_once_the_instance_is_there(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        park(parcels, worker, what, task_id="m1", headers={"tenant": "t"})
        parcels.saga.announce("1", "c1")
        assert parcels.relay() == 1
        (again,) = worker.waiting()
        assert (again.id, again.headers["tenant"], again.headers[LOOKS]) == ("m1", "t", 2)
        worker.run()
        worker.deliver_again(again)

        assert parcels.seen == ["scanned" if what == "key" else "delivered"]
        assert backend_of(app).outbox.count() == 0

    def test_looks_again_and_again(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        park(parcels, worker, what)
        for look in range(3, 6):
            with hours_ago(2 - look * 60 / 3600):
                assert parcels.relay() == 1
                assert worker.one().task.startswith("parcel.")
        assert (worker.waiting(), backend_of(app).outbox.count()) == ([], 1)
        parcels.saga.announce("1", "c1")
        parcels.relay()
        worker.run()
        assert len(parcels.seen) == 1

    def test_delivered_again_is_parked_once(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        """Its worker has died before it could acknowledge it."""
        park(parcels, worker, what)
        with hours_ago(2 - 30 / 3600):
            worker.deliver_again(worker.done[-1])
        assert (worker.waiting(), backend_of(app).outbox.count()) == ([], 1)

    def test_id_of_its_producer(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        park(parcels, worker, what, headers={MESSAGE_ID: "order-7"})
        parcels.saga.announce("1", "c1")
        parcels.relay()
        worker.run()
        assert parcels.entries[-1].message_id == "order-7"

    def test_what_follows_it(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        park(parcels, worker, what, link=parcels.noted.si("linked"))
        parcels.saga.announce("1", "c1")
        parcels.relay()
        worker.run()
        assert parcels.notes == ["linked"]


@every_key
class TestEnd:
    def fail(self, parcels: Parcels, worker: Worker, what: str) -> Any:
        """Return the dead letter of a message that has waited in vain."""
        park(parcels, worker, what)
        parcels.relay()
        worker.run()
        (letter,) = parcels.dead
        return letter

    def test_dead_letter_is_retried(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        letter = self.fail(parcels, worker, what)
        assert (letter.error, letter.key) == ("SagaNotFound", "1" if what == "key" else "")
        parcels.saga.announce("1", "c1")
        retry_dead_letter(runtime_of(app), letter)
        worker.run()
        assert (len(parcels.seen), parcels.dead) == (1, [])

    def test_retry_may_wait_as_long(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        letter = self.fail(parcels, worker, what)
        retry_dead_letter(runtime_of(app), letter)
        worker.one()
        (again,) = worker.waiting()
        assert (again.headers[LOOKS], parcels.dead) == (1, [])

    def test_dead_letter_is_discarded(self, app: Celery, worker: Worker, parcels: Parcels, what: str) -> None:
        letter = self.fail(parcels, worker, what)
        assert not discard_dead_letter(runtime_of(app), letter)
        assert (parcels.dead, backend_of(app).outbox.count()) == ([], 0)


def test_key_of_an_instance_that_has_completed(app: Celery, worker: Worker, parcels: Parcels) -> None:
    """The message is late, and does not wait."""
    parcels.saga.announce("1", "c1")
    parcels.saga.end("1")
    parcels.saga.scan.delay("1")
    worker.one()
    assert (worker.waiting(), backend_of(app).outbox.count()) == ([], 0)
    assert [entry.outcome for entry in parcels.entries] == ["started", "completed", "ignored"]


def test_instance_that_completes_while_a_message_is_parked(app: Celery, worker: Worker, parcels: Parcels) -> None:
    park(parcels, worker, "key")
    parcels.saga.announce("1", "c1")
    parcels.saga.end("1")
    parcels.relay()
    worker.run()
    outcomes = [entry.outcome for entry in parcels.entries]  # of one millisecond, perhaps
    assert (outcomes.count("ignored"), parcels.dead) == (1, [])


def test_next_instance_of_the_key(app: Celery, worker: Worker, parcels: Parcels) -> None:
    """It takes what has waited for the one before."""
    park(parcels, worker, "alternate key")
    parcels.saga.announce("1", "c1")
    parcels.saga.end("1")
    parcels.saga.announce("2", "c1")
    parcels.relay()
    worker.run()
    assert parcels.saga.find("2").seen == ["delivered"]
