"""How many messages wait with an instance, and how long; and the status in which a step leaves it."""

import json
from typing import Any

import pytest

from celery_sagas.core.deferred import MOST
from celery_sagas.core.requests.requests import Addressed, ReplyKind
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import InvalidState, TooManyDeferred, WrongStatus
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import OutboxRow
from tests.engine.conftest import NOW, Engine, handler, starter
from tests.engine.tickets import MESSAGES, Ticket, Tickets, rows, steps, tickets

__all__ = ["steps"]
pytestmark = pytest.mark.usefixtures("steps")

MINUTE_MS = 60_000
every_message = pytest.mark.parametrize("what", MESSAGES)


class TestNumber:
    def full(self, engine: Engine) -> Tickets:
        made = tickets(engine)
        for number in range(MOST):
            made.send(made.work, f"m{number}", n=number)
        return made

    def test_is_bounded(self, engine: Engine) -> None:
        made = self.full(engine)
        before = made.record
        with pytest.raises(TooManyDeferred, match=r"100 messages wait with it, and no more can. It is redelivered later"):
            made.send(made.work, "more")
        assert made.record == before

    def test_repeat_of_one_that_waits(self, engine: Engine) -> None:
        made = self.full(engine)
        assert made.again("m7").kind is Kind.DEFERRED

    def test_others_are_handled(self, engine: Engine) -> None:
        """All that wait are published with one commit, whatever else it sends."""
        made = self.full(engine)
        assert made.become("open").kind is Kind.HANDLED
        assert engine.publisher.ids == [f"m{number}" for number in range(MOST)]
        assert made.send(made.work, "more").kind is Kind.HANDLED

    def test_there_is_room_again(self, engine: Engine) -> None:
        made = self.full(engine)
        made.become("open")
        made.become("shut")
        assert made.again("m0", since=NOW).kind is Kind.DEFERRED

    def test_one_that_has_waited_for_long_enough_fails(self, engine: Engine) -> None:
        """Though no more can wait."""
        made = tickets(engine, defer_for=60)
        for number in range(MOST):
            made.send(made.work, f"m{number}", n=number)
        engine.now += MINUTE_MS
        made.sent["more"] = made.work, {"number": "1"}
        with pytest.raises(WrongStatus):
            made.again("more", since=NOW)


class TestSize:
    def test_is_that_of_the_state(self, backend: MemoryBackend) -> None:
        engine = Engine(backend, state_bytes=2_000)
        made = tickets(engine)
        before = made.record
        made.work = handler(_noting, saga=Ticket, when="open", if_not="defer")
        with pytest.raises(TooManyDeferred, match="saga_max_state_bytes allows 2000 together"):
            made.send(made.work, "m1", text="x" * 2_000)
        assert made.record == before
        assert made.send(made.work, "m2", text="x").kind is Kind.DEFERRED

    def test_state_that_grows_beside_them(self, backend: MemoryBackend) -> None:
        """The error says what takes the room."""

        def grow(ticket: Ticket, number: str) -> None:
            ticket.seen = ["x" * 1_000]

        engine = Engine(backend, state_bytes=2_000)
        made = tickets(engine)
        made.work = handler(_noting, saga=Ticket, when="open", if_not="defer")
        made.send(made.work, "m1", text="x" * 800)
        with pytest.raises(
            InvalidState, match=r"what it waits for \(timeouts, requests, undos, deferred messages, alternate keys\)"
        ):
            made.send(handler(grow, saga=Ticket), "grows")


def _noting(ticket: Ticket, number: str, text: str = "") -> None:
    """Note nothing."""


_noting.__name__ = "work"


class TestTime:
    def wakes(self, backend: MemoryBackend) -> list[OutboxRow]:
        return [row for row in rows(backend) if row.task == "ticket.(deferred)"]

    def wake(self, made: Tickets) -> Any:
        """Have the message come that ends the waiting of the first message."""
        waiting = made.deferred[0]
        addressed = Addressed(made.record.id, waiting.wake)
        return made.engine.handle(made.wake, id=waiting.wake, addressed=addressed)

    @every_message
    def test_without_an_end(self, engine: Engine, backend: MemoryBackend, what: str) -> None:
        made = tickets(engine)
        made.come(what)
        assert self.wakes(backend) == []

    @every_message
    def test_end_is_due_after_it(self, engine: Engine, backend: MemoryBackend, what: str) -> None:
        made = tickets(engine, defer_for=60)
        made.come(what)
        (row,), (waiting,) = self.wakes(backend), made.deferred

        assert (row.id, row.message_id, row.kind) == (waiting.row, waiting.wake, "scheduled")
        assert backend.outbox._state.outbox._by_id[row.id].message.due_at == NOW + MINUTE_MS  # type: ignore[attr-defined]
        assert json.loads(made.entries[-1].detail)["scheduled"] == [{"task": "ticket.(deferred)", "id": waiting.wake}]

    @every_message
    def test_end_has_it_published_and_fail(self, engine: Engine, what: str) -> None:
        made = tickets(engine, defer_for=60)
        made.come(what)
        engine.now += MINUTE_MS

        assert self.wake(made).kind is Kind.HANDLED
        assert (engine.publisher.ids, made.deferred) == (["m1"], [])
        with pytest.raises(WrongStatus) as raised:
            made.again("m1", since=NOW)
        assert raised.value.waited == 60

    @every_message
    def test_status_that_comes_at_the_last_moment(self, engine: Engine, what: str) -> None:
        made = tickets(engine, defer_for=60)
        made.come(what)
        engine.now += MINUTE_MS
        self.wake(made)
        made.become("open")

        assert made.again("m1", since=NOW).kind is Kind.HANDLED
        assert len(made.seen) == 1

    @every_message
    def test_release_withdraws_its_end(self, engine: Engine, backend: MemoryBackend, what: str) -> None:
        made = tickets(engine, defer_for=60)
        made.come(what)
        end = Addressed(made.record.id, made.deferred[0].wake)
        made.become("open")
        assert self.wakes(backend) == []
        assert engine.handle(made.wake, id="late", addressed=end).kind is Kind.DROPPED

    def test_ends_of_several(self, engine: Engine, backend: MemoryBackend) -> None:
        made = tickets(engine, defer_for=60)
        for number in range(3):
            engine.now = NOW + number
            made.send(made.work, f"m{number}", n=number)
        assert [row.message_id for row in self.wakes(backend)] == [waiting.wake for waiting in made.deferred]
        assert len({waiting.row for waiting in made.deferred}) == 3

        self.wake(made)
        assert [waiting.id for waiting in made.deferred] == ["m1", "m2"]

    def test_one_that_comes_again_has_an_end_of_its_own(self, engine: Engine, backend: MemoryBackend) -> None:
        """At the same time: it counts from the first arrival."""
        made = tickets(engine, defer_for=60)
        made.come("message")
        first = made.deferred[0].wake
        made.become("open")
        made.become("shut")
        engine.now += 1_000
        made.again("m1", since=NOW)

        (row,), (waiting,) = self.wakes(backend), made.deferred
        assert waiting.wake != first
        assert backend.outbox._state.outbox._by_id[row.id].message.due_at == NOW + MINUTE_MS  # type: ignore[attr-defined]

    def test_of_an_answer(self, engine: Engine) -> None:
        """Its dead letter can be retried: the request stays open."""
        made = tickets(engine, defer_for=60)
        made.come(ReplyKind.ANSWER)
        engine.now += MINUTE_MS
        self.wake(made)
        with pytest.raises(WrongStatus):
            made.again("m1", since=NOW)
        assert made.is_awaited(ReplyKind.ANSWER)


class TestLeaving:
    def ticket(self, engine: Engine, function: Any, to: Any) -> Tickets:
        made = tickets(engine)
        made.send(handler(function, saga=Ticket, to=to), "leaves")
        return made

    def test_status_is_set(self, engine: Engine) -> None:
        assert self.ticket(engine, _still, "open").data["status"] == "open"

    def test_it_releases_what_waits_for_it(self, engine: Engine) -> None:
        made = tickets(engine)
        made.come("message")
        made.send(handler(_still, saga=Ticket, to="open"), "opens")
        assert made.released() == ["m1"]

    def test_of_a_new_instance(self, engine: Engine) -> None:
        made = tickets(engine)
        engine.handle(starter(_born, saga=Ticket, to="open"), number="2")
        assert made.send(made.work, "m1", number="2").kind is Kind.HANDLED

    def test_failure_stores_nothing(self, engine: Engine) -> None:
        made = tickets(engine)
        before = made.record
        with pytest.raises(InvalidState, match=r"leaves it 'new', and is declared with to=\('open', 'shut'\)"):
            made.send(handler(_still, saga=Ticket, to=("open", "shut")), "leaves")
        assert made.record == before

    def test_with_the_end_of_the_instance(self, engine: Engine) -> None:
        """One status is set, of several the handler sets one, also if it is the last: what remains of it shows that."""

        def ends(ticket: Ticket, number: str) -> None:
            ticket.complete()

        made = tickets(engine)
        with pytest.raises(InvalidState):
            made.send(handler(ends, saga=Ticket, to=("open", "shut")), "m1")
        assert made.send(handler(ends, saga=Ticket, to="shut"), "m2").kind is Kind.COMPLETED


def _still(ticket: Ticket, number: str) -> None:
    """Leave the ticket as it is."""


def _born(ticket: Ticket, number: str) -> None:
    """Begin a ticket."""
