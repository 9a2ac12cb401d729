"""A trip that books, and undoes what it has booked; wherever sagas are kept."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.app.task import Context

from celery_sagas import Failure, Saga, clock
from celery_sagas.core.pending import Pending, read_pending
from celery_sagas.stores.records import KEY, DeadLetter, Entry, Lookup, OutboxRow, Record
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of
from tests.every_store import STORES
from tests.matrices import in_turn

HOUR = timedelta(hours=1)
MONTH = timedelta(days=30)
#: A Redis Cluster keeps pending maps as Redis does; and stores perform the operations of batches as their contract says.
_STORE, _BATCH = in_turn("store", "url", "worker"), in_turn("batch", "url", "worker")
PLACES = [
    ("memory", "task"),
    *(pytest.param(store, "task", marks=_STORE) for store in STORES if store not in ("memory", "redis_cluster")),
    *(pytest.param(store, "batch", marks=_BATCH) for store in ("memory", "postgresql")),
]
on_every_store = pytest.mark.parametrize(("url", "worker"), PLACES, indirect=True)


class Boom(Exception):
    """What a task raises."""


class Cancelled(NamedTuple):
    """A run of the task that undoes a booking."""

    args: tuple[Any, ...]
    undoes: str  #: the header: the id under which the booking was sent


@dataclass
class Trips:
    """The saga, its tasks, and what they do in a test."""

    app: Celery
    saga: Any = None
    book: Any = None
    cancel: Any = None
    act: Callable[[Any], object] = lambda trip: None
    on_failure: Callable[[Any], object] = lambda trip: None
    booked: list[Any] = field(default_factory=list)
    cancelled: list[Cancelled] = field(default_factory=list)
    failing: set[Any] = field(default_factory=set)  #: bookings that fail
    stuck: set[Any] = field(default_factory=set)  #: first arguments of cancellations that fail
    ids: dict[Any, str] = field(default_factory=dict)  #: of the requests, by what was booked

    def do(self, worker: Worker, act: Callable[[Any], object], key: str = "7") -> Delivered:
        """Have a trip act, in a step of its own; what it sends waits in the queue."""
        self.act = act
        self.saga.travel.delay(key)
        delivered = worker.one()
        assert delivered.task == "trip.travel", f"{delivered.task} waited, too"
        return delivered

    def send(self, worker: Worker, what: Any = "A", **options: Any) -> None:
        """Have the trip 7 book something within an hour; the message waits in the queue."""
        options = {"then": "came", "otherwise": "failed", "within": HOUR, "undo": self.cancel, **options}

        def act(trip: Any) -> None:
            self.ids[what] = trip.send(self.book.s(what), **options)

        assert self.do(worker, act).error is None

    def hold(self, worker: Worker, what: Any = "A", **options: Any) -> Delivered:
        """Have the trip 7 book something; return the message, which no worker has taken yet."""
        self.send(worker, what, **options)
        (held,) = held_back(worker)
        return held

    def compensate(self, worker: Worker, **options: Any) -> None:
        """Have the trip 7 undo everything."""
        delivered = self.do(worker, lambda trip: trip.compensate(**{"then": "undone", **options}))
        assert delivered.error is None

    def come(self, worker: Worker, held: Delivered, came: str) -> None:
        """Have something come of a message that was held back: an answer, a failure, its deadline, or a doubt."""
        if came in ("answer", "failure"):
            self.failing = {held.args[0]} if came == "failure" else set()
            worker.deliver_again(held)
        elif came == "deadline":
            assert self.relay("deadline"), "no deadline is due"
        else:
            request = Context(dict(held.headers), headers=dict(held.headers), id=held.id, task="book")
            assert notify_requester(self.app, request, "gone", "lost")
        worker.run()

    def relay(self, kind: str = "") -> int:
        """Publish the rows that are due by the store's clock, or those of a kind; return how many there were."""
        outbox, rows = backend_of(self.app).outbox, self.claim(kind)
        for row in rows:
            runtime_of(self.app).publisher.publish(row)
        outbox.confirm("relay", [row.id for row in rows])
        return len(rows)

    def claim(self, kind: str = "") -> list[OutboxRow]:
        """Claim the rows that are due by the store's clock, or those of a kind."""
        outbox = backend_of(self.app).outbox
        rows = outbox.claim_due("relay", 100, 60_000)
        outbox.release("relay", [row.id for row in rows if kind not in ("", row.kind)])
        return [row for row in rows if kind in ("", row.kind)]

    def send_again(self, held: Delivered) -> None:
        """Put a message that was held back into the queue, as it was."""
        headers = {name: value for name, value in held.headers.items() if name.startswith("saga_")}
        follows = {"link": held.embed["callbacks"]}
        self.app.send_task(held.task, held.args, held.kwargs, task_id=held.id, headers=headers, **follows)

    def rows(self) -> int:
        """Return how many rows the outbox has."""
        return backend_of(self.app).outbox.count()

    def trip(self, key: str = "7") -> Any:
        """Return a trip."""
        trip = self.saga.find(key)
        assert trip is not None, f"there is no trip {key}"
        return trip

    def seen(self, key: str = "7") -> list[str]:
        """Return what a trip was told."""
        return list(self.trip(key).seen)

    def args(self) -> list[tuple[Any, ...]]:
        """Return the arguments of the cancellations."""
        return [run.args for run in self.cancelled]

    def record(self, key: str = "7") -> Record:
        """Return what is stored of a trip."""
        record = backend_of(self.app).sagas.find(Lookup(("trip",), KEY, key)).record
        assert record is not None, f"there is no trip {key}"
        return record

    def pending(self, key: str = "7") -> Pending:
        """Return what a trip waits for."""
        return read_pending(self.record(key).pending)

    def entries(self, key: str = "7") -> list[Entry]:
        """Return the journal of a trip."""
        return backend_of(self.app).journal.history(["trip"], key, 1000)

    def dead(self) -> list[DeadLetter]:
        """Return the dead letters."""
        return backend_of(self.app).dead.list(10)


def held_back(worker: Worker) -> list[Delivered]:
    """Take the messages that wait out of the queue, and return them."""
    held = worker.waiting()
    worker.app.control.purge()
    return held


def tasks_of(waiting: list[Delivered]) -> list[str]:
    """Return the tasks of messages."""
    return [delivered.task for delivered in waiting]


@contextmanager
def hours_ago(hours: float = 2) -> Iterator[None]:
    """Have steps run so many hours ago: what they schedule for the hours since then is due by the store's clock."""
    with clock.replaced_by(lambda: time.time() - hours * 3600):
        yield


def define(app: Celery) -> Trips:
    """Define the saga and the tasks in an app."""
    trips = Trips(app)

    class Trip(Saga, correlate_by="trip_id", history="messages"):
        trip_id: str
        seen: list[str] = []

    @Trip.starts
    def travel(trip: Trip, trip_id: str) -> Any:
        return trips.act(trip)

    @Trip.handles
    def came(trip: Trip, answer: Any) -> None:
        trip.seen.append(f"came {answer}{' late' if trip.saga.message.late else ''}")

    @Trip.handles
    def told(trip: Trip) -> None:
        trip.seen.append("told")

    @Trip.handles
    def failed(trip: Trip, failure: Failure) -> None:
        trip.seen.append(f"failed {failure.kind}")
        trips.on_failure(trip)

    @Trip.handles
    def gathered(trip: Trip, gathered: Any) -> None:
        trip.seen.append("gathered")

    @Trip.handles
    def undone(trip: Trip, note: str = "") -> None:
        trip.seen.append(f"undone {note}".strip())

    @Trip.handles
    def stop(trip: Trip, trip_id: str) -> str:
        trip.compensate(then="undone")
        return "stopped"

    @Trip.handles
    def finished(trip: Trip) -> None:
        trip.complete()

    @Trip.handles
    def end(trip: Trip, trip_id: str) -> None:
        trip.complete()

    @app.task(name="book", acks_late=True)
    def book(what: Any) -> Any:
        if what in trips.failing:
            raise Boom(f"no {what}")
        trips.booked.append(what)
        return f"ticket {what}" if isinstance(what, str) else what

    @app.task(name="cancel", bind=True, acks_late=True)
    def cancel(self: Any, *args: Any) -> None:
        undoes = self.request.headers["saga_undoes"] if app.conf.task_always_eager else self.request.saga_undoes
        trips.cancelled.append(Cancelled(args, undoes))
        if args and args[0] in trips.stuck:
            raise Boom(f"cannot cancel {args[0]}")

    Trip.travel, Trip.end, Trip.undone, Trip.stop = travel, end, undone, stop  # type: ignore[attr-defined]
    trips.saga, trips.book, trips.cancel = Trip, book, cancel
    return trips


@pytest.fixture
def app(stored_app: Celery) -> Celery:
    """An app on each store."""
    return stored_app


@pytest.fixture
def trips(app: Celery) -> Trips:
    """The saga and its tasks, of this test alone."""
    return define(app)
