"""Deferred messages, and what an instance does meanwhile with that to which they belong."""

import pytest

from celery_sagas.core.requests.requests import Addressed, Target
from celery_sagas.core.requests.undo import Undoing
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.outcomes import Kind
from tests.engine.conftest import Engine, handler
from tests.engine.tickets import Ticket, Tickets, steps, tickets

__all__ = ["steps"]
pytestmark = pytest.mark.usefixtures("steps")


class TestEndOfACompensation:
    """The message to the step that ``compensate(then=)`` names is no timeout, and is waited for as one."""

    THEN = SerializedMessage("u1", "u1", "ticket.tick", "{}")

    def compensated(self, engine: Engine, if_not: str) -> Tickets:
        def compensates(ticket: Ticket, number: str) -> None:
            pending = ticket._context.pending  # type: ignore[union-attr]
            pending.undo.undoing = Undoing([], Target("ticket.tick"))
            pending.send_then(self.THEN)

        made = tickets(engine, if_not)
        made.send(handler(compensates, saga=Ticket), "m0")
        return made

    def then(self, made: Tickets) -> Kind:
        return made.send(made.tick, "m1", addressed=Addressed(made.record.id, "u1")).kind

    def test_waits_for_the_status(self, engine: Engine) -> None:
        made = self.compensated(engine, "defer")
        assert self.then(made) is Kind.DEFERRED
        made.become("shut")
        assert engine.publisher.ids.count("m1") == 0
        assert made.pending.is_undoing

        made.become("open")
        assert made.released() == ["m1"]
        assert (made.seen, made.pending.is_undoing) == (["tick"], False)

    def test_that_is_ignored_ends_it(self, engine: Engine) -> None:
        made = self.compensated(engine, "ignore")
        assert self.then(made) is Kind.IGNORED
        assert not made.pending.is_undoing
