"""A parcel whose steps run once it was sent, by one policy; wherever sagas are kept."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import pytest
from celery import Celery

from celery_sagas import Failure, Gathered, Saga
from celery_sagas.core.pending import Pending, read_pending
from celery_sagas.engine.history import history_of
from celery_sagas.stores.records import KEY, DeadLetter, Entry, Lookup
from celery_sagas.worker.replaying import replaying
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of
from tests.worker.requests.trips import held_back, hours_ago

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
#: The kinds of messages, with what a parcel notes of each.
NOTED = {
    "message": "scanned 1",
    "starter": "packed",
    "timeout": "reminded",
    "series": "reminded",
    "answer": "came 1",
    "failure": "failed error",
    "deadline": "failed deadline",
    "gathered": "gathered 2",
}


class Boom(Exception):
    """What a task raises."""


@dataclass
class Parcels:
    """The saga, and what its tasks do in a test."""

    app: Celery
    saga: Any = None
    quote: Any = None
    noted: Any = None
    acts: list[Callable[[Any], object]] = field(default_factory=list)  #: what it has done, by number
    fails: bool = False
    notes: list[Any] = field(default_factory=list)

    def do(self, worker: Worker, act: Callable[[Any], object]) -> None:
        """Have the parcel act, in a step that runs in each status; what it sends waits in the queue."""
        self.acts.append(act)
        self.saga.do.delay("1", len(self.acts) - 1)
        delivered = worker.one()
        assert (delivered.task, delivered.error) == ("parcel.do", None)

    def become(self, worker: Worker, status: str) -> None:
        """Change the status; what is published then waits in the queue."""
        self.do(worker, lambda parcel: setattr(parcel, "status", status))

    def bring(self, worker: Worker, what: str) -> None:
        """Have a message of a kind come."""
        if what in ("message", "starter"):
            (self.saga.scan if what == "message" else self.saga.pack).apply_async(("1",), task_id="m1")
        elif what in ("timeout", "series"):
            when: dict[str, Any] = {"after": 60} if what == "timeout" else {"every": MINUTE}
            with hours_ago():
                self.do(worker, lambda parcel: parcel.schedule("remind", name="x", **when))
            self.relay("scheduled" if what == "timeout" else "series")
        elif what == "gathered":
            self.do(worker, lambda parcel: parcel.gather([self.quote.s(1), self.quote.s(2)], then="gathered"))
        else:
            self.ask(worker, what)
        worker.run()

    def ask(self, worker: Worker, what: str) -> None:
        """Have an outcome of a request come."""
        self.fails = what == "failure"
        options: dict[str, Any] = {"then": "came"} | ({} if what == "answer" else {"otherwise": "failed"})
        if what == "deadline":
            options["within"] = MINUTE
        with hours_ago() if what == "deadline" else nullcontext():
            self.do(worker, lambda parcel: parcel.send(self.quote.si(1), **options))
        if what == "deadline":
            held_back(worker)
            self.relay("deadline")

    def relay(self, kind: str = "") -> int:
        """Publish the rows that are due by the store's clock, or those of a kind; return how many there were."""
        outbox = backend_of(self.app).outbox
        rows = outbox.claim_due("relay", 100, 60_000)
        mine = [row for row in rows if kind in ("", row.kind)]
        outbox.release("relay", [row.id for row in rows if row not in mine])
        for row in mine:
            runtime_of(self.app).publisher.publish(row)
        outbox.confirm("relay", [row.id for row in mine if row.kind != "series"])
        return len(mine)

    @property
    def parcel(self) -> Any:
        """The parcel."""
        parcel = self.saga.find("1")
        assert parcel is not None, "there is no parcel 1"
        return parcel

    @property
    def seen(self) -> list[str]:
        """What it has noted."""
        return list(self.parcel.seen)

    @property
    def waiting(self) -> list[str]:
        """The steps of the messages that wait with it."""
        return [message.step for message in self.parcel.saga.deferred]

    @property
    def pending(self) -> Pending:
        """What it waits for."""
        record = backend_of(self.app).sagas.find(Lookup(("parcel",), KEY, "1")).record
        assert record is not None, "there is no parcel 1"
        return read_pending(record.pending)

    @property
    def entries(self) -> list[Entry]:
        """Its journal."""
        return backend_of(self.app).journal.history(["parcel"], "1", 1_000)

    @property
    def dead(self) -> list[DeadLetter]:
        """The dead letters."""
        return backend_of(self.app).dead.list(10)

    def is_awaited(self) -> bool:
        """Return whether it waits for a timeout, or for the outcome of a request."""
        pending = self.pending
        return bool(pending.timeouts or [each for each in pending.requests.values() if not each.has_timed_out])

    def replays(self) -> None:
        """Handle its history again."""
        history = history_of(backend_of(self.app).journal, self.saga.__saga__, "1")
        with replaying(self.app) as replay:
            assert str(replay(history)) == f"parcel '1': {len(history.messages)} messages, and the same state after each"


def define(app: Celery, if_not: str, **moment: Any) -> Parcels:
    """Define the saga and the tasks in an app, and begin the parcel 1."""
    parcels = Parcels(app)
    moment = {"when": "sent", "if_not": if_not, **moment}

    class Parcel(Saga, correlate_by="number", also_by="code", status_by="status", history="messages"):
        number: str
        code: str | None = None
        status: Literal["packed", "sent", "lost"] = "packed"
        seen: list[str] = []

    @Parcel.starts(**moment)
    def pack(parcel: Parcel, number: str) -> str:
        if not parcel.saga.is_new:
            parcel.seen.append("packed")
        return "packed"

    @Parcel.handles
    def do(parcel: Parcel, number: str, act: int) -> Any:
        parcels.acts[act](parcel)

    @Parcel.handles(**moment)
    def scan(parcel: Parcel, number: str, n: int = 1) -> str:
        parcel.seen.append(f"scanned {n}")
        return f"scan {n}"

    @Parcel.handles(**moment)
    def remind(parcel: Parcel) -> None:
        parcel.seen.append("reminded")

    @Parcel.handles(**moment)
    def came(parcel: Parcel, answer: Any) -> None:
        parcel.seen.append(f"came {answer}")

    @Parcel.handles(**moment)
    def failed(parcel: Parcel, failure: Failure) -> None:
        parcel.seen.append(f"failed {failure.kind}")

    @Parcel.handles(**moment)
    def gathered(parcel: Parcel, gathered: Gathered[int]) -> None:
        parcel.seen.append(f"gathered {len(gathered.answers)}")

    @Parcel.handles
    def too_few(parcel: Parcel, gathered: Gathered[int]) -> None:
        parcel.seen.append("too few")

    @app.task(name="quote", acks_late=True)
    def quote(what: Any) -> Any:
        if parcels.fails:
            raise Boom("no")
        return what

    @app.task(name="noted")
    def noted(what: Any = None) -> Any:
        parcels.notes.append(what)
        return what

    Parcel.pack, Parcel.do, Parcel.scan = pack, do, scan  # type: ignore[attr-defined]
    parcels.saga, parcels.quote, parcels.noted = Parcel, quote, noted
    pack("1")
    return parcels


def outcomes(worker: Worker, task: str) -> list[str]:
    """Return what became of the messages of a task: how they were settled, and with which error."""
    done: list[Delivered] = [each for each in worker.done if each.task == task]
    return [f"{each.fate} {type(each.error).__name__}" for each in done]


@pytest.fixture
def app(stored_app: Celery) -> Celery:
    """An app on each store."""
    return stored_app
