"""Tickets, whose steps run in one status: what comes in another one is refused, ignored, or deferred."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from celery_sagas.core.deferred import Deferred
from celery_sagas.core.pending import Pending, read_pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import FAILURES, Addressed, ReplyKind, Request, ReturnAddress, Target
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.series import Interval
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition, deferred_step
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import KEY, Change, Entry, Lookup, OutboxRow, Record
from celery_sagas.testing.samples import effects
from tests.engine.conftest import NOW, Engine, handler, starter

DUE = NOW + 3_600_000
ASKER = ReturnAddress("cart", "c1", "asked", Target("cart.done"), Target("cart.failed"))
#: What a message may be: to a handler, to a starter, a timeout, an occurrence of a series, or an outcome of a request.
MESSAGES = ("message", "starter", "timeout", "series", *ReplyKind)


class Ticket(State, correlate_by="number", also_by="code", status_by="status"):
    """A ticket."""

    number: str
    code: str | None = None
    status: Literal["new", "open", "shut"] = "new"
    seen: list[str] = []


def begin(ticket: Ticket, number: str, status: Any = "new", code: str | None = None) -> None:
    """Open a ticket, or change its status."""
    ticket.status, ticket.code = status, code


def ask(ticket: Ticket, number: str) -> None:
    """Ask, and schedule."""
    pending = ticket._context.pending  # type: ignore[union-attr]
    request = Request("r1", "charge", "ticket.came", "ticket.failed", at=DUE, progress="ticket.came")
    pending.new_requests["r1"] = request, SerializedMessage("d1", "d1", "ticket.failed", "{}", DUE)
    pending.schedule("once", SerializedMessage("t1", "t1", "ticket.tick", "{}", DUE), DUE)
    pending.schedule("often", SerializedMessage("s1", "s1", "ticket.tick", "{}", DUE), DUE, Interval(DUE, 1_000))


def work(ticket: Ticket, number: str, n: int = 0) -> str:
    """Note a number."""
    ticket.seen.append(f"worked {n}")
    return f"done {n}"


def open_again(ticket: Ticket, number: str, n: int = 0) -> str:
    """Note a number, as a starter."""
    ticket.seen.append(f"began {n}")
    return f"begun {n}"


def tick(ticket: Ticket) -> None:
    """Note a timeout."""
    ticket.seen.append("tick")


def came(ticket: Ticket, answer: Any) -> None:
    """Note an answer, and whether it is late."""
    ticket.seen.append(f"came {answer}{' late' if ticket.saga.message.late else ''}")


def failed(ticket: Ticket, failure: Any) -> None:
    """Note a failure."""
    ticket.seen.append(f"failed {failure}")


def end(ticket: Ticket, number: str) -> None:
    """Complete the ticket."""
    ticket.complete()


class Tickets:
    """The ticket 1 in an engine, whose steps run on an open ticket, by one policy."""

    def __init__(self, engine: Engine, if_not: str, **moment: Any) -> None:
        self.engine = engine
        declared = {"saga": Ticket, "when": "open", "if_not": if_not, **moment}
        self.begin, self.ask, self.end = (starter(begin, saga=Ticket), *(handler(each, saga=Ticket) for each in (ask, end)))
        self.work, self.tick, self.came, self.failed = (handler(each, **declared) for each in (work, tick, came, failed))
        self.open_again = starter(open_again, **declared)
        assert Ticket.__saga__ is not None
        self.wake = deferred_step(Ticket.__saga__)
        for step in (self.begin, self.ask, self.end, self.work, self.tick, self.came, self.failed, self.open_again, self.wake):
            registry.add_step(step)
        self.sent: dict[str, tuple[StepDefinition, dict[str, Any]]] = {}  #: messages by their ids

    def send(self, step: StepDefinition, id: str, **message: Any) -> Outcome:
        """Have a message come; one to a known instance needs no number."""
        given = message if "addressed" in message else {"number": "1", **message}
        self.sent.setdefault(id, (step, given))
        return self.engine.handle(step, id=id, **given)

    def come(self, what: str, id: str = "m1", **given: Any) -> Outcome:
        """Have a message of a kind come."""
        if what in ("message", "starter"):
            return self.send(self.work if what == "message" else self.open_again, id, n=1, **given)
        if what in ("timeout", "series"):
            timeout, due_at = ("t1", 0) if what == "timeout" else ("s1", DUE)
            return self.send(self.tick, id, addressed=Addressed(self.record.id, timeout, due_at=due_at), **given)
        step, argument = (self.failed, "failure") if what in FAILURES else (self.came, "answer")
        return self.send(step, id, addressed=Addressed(self.record.id, "r1", what), **{argument: what}, **given)

    def again(self, id: str, since: int | None = None) -> Outcome:
        """Have a message come once more."""
        step, message = self.sent[id]
        return self.engine.handle(step, id=id, since=since, **message)

    def become(self, status: str, id: str | None = None) -> Outcome:
        """Change the status."""
        return self.engine.handle(self.begin, id=id, number="1", status=status)

    def released(self) -> list[str]:
        """Have the messages come that were published since they came last; return their ids."""
        ids = [id for id in self.engine.publisher.ids if id in self.sent]
        self.engine.publisher.published.clear()
        for id in ids:
            self.again(id)
        return ids

    @property
    def record(self) -> Record:
        """What is stored of the ticket."""
        record = self.engine.backend.sagas.find(Lookup(("ticket",), KEY, "1")).record
        assert record is not None, "there is no ticket 1"
        return record

    @property
    def pending(self) -> Pending:
        """What the ticket waits for."""
        return read_pending(self.record.pending, self.record.updated_at)

    @property
    def deferred(self) -> list[Deferred]:
        """The messages that wait with it."""
        return self.pending.deferred

    @property
    def data(self) -> dict[str, Any]:
        """Its stored fields."""
        data: dict[str, Any] = json.loads(self.record.data)
        return data

    @property
    def seen(self) -> list[str]:
        """What it has noted."""
        return list(self.data["seen"])

    @property
    def entries(self) -> list[Entry]:
        """Its journal."""
        return self.engine.backend.journal.history(["ticket"], "1", 1_000)

    def is_awaited(self, what: str) -> bool:
        """Return whether the ticket still waits for a message of a kind."""
        pending = self.pending
        if what in ("timeout", "series"):
            return ("once" if what == "timeout" else "often") in pending.timeouts
        request = pending.requests.get("r1")
        return request is not None and not request.has_timed_out

    def series(self) -> Timeout:
        """Return the series."""
        return self.pending.timeouts["often"]


def rows(backend: MemoryBackend) -> list[OutboxRow]:
    """Return the rows of the outbox."""
    return [row.message for row in backend.outbox._state.outbox._by_id.values()]


@pytest.fixture
def steps() -> Iterator[None]:
    """Steps of this test alone."""
    kept = dict(registry.sagas), dict(registry.steps)
    registry.sagas.clear()
    registry.steps.clear()
    assert Ticket.__saga__ is not None
    registry.add_saga(Ticket.__saga__)
    yield
    registry.sagas, registry.steps = kept


def rewrite(made: Tickets, pending: str) -> None:
    """Have the store keep another pending map of the ticket."""
    record = made.record
    change = Change((record.saga,), record.schema_version, record.data, pending)
    made.engine.backend.sagas.update(record, change, effects(record))


def define(*steps: StepDefinition) -> None:
    """Have the code have these steps alone."""
    registry.steps.clear()
    for step in steps:
        registry.add_step(step)


def tickets(engine: Engine, if_not: str = "defer", **moment: Any) -> Tickets:
    """Return a ticket that is new, has asked, and waits for a timeout and for a series."""
    made = Tickets(engine, if_not, **moment)
    engine.handle(made.begin, id="b1", number="1", code="c1")
    engine.handle(made.ask, id="a1", number="1")
    return made
