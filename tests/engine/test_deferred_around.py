"""Deferred messages, and what an instance does meanwhile with that to which they belong."""

import pytest

from celery_sagas.core.requests.requests import Addressed, ReplyKind, Target
from celery_sagas.core.requests.undo import Undoing
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.outcomes import Kind
from celery_sagas.stores.memory.backend import MemoryBackend
from tests.engine.conftest import Engine, handler
from tests.engine.tickets import DUE, Ticket, Tickets, rows, steps, tickets

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


FAILURE_KINDS = [ReplyKind.FAILURE, ReplyKind.UNCERTAIN, ReplyKind.DEADLINE]


class TestRequest:
    """Of a request, one outcome of which is deferred, no failure counts that comes after it."""

    @pytest.mark.parametrize("then", FAILURE_KINDS)
    @pytest.mark.parametrize("first", [ReplyKind.ANSWER, ReplyKind.GATHERED])
    def test_failure_after_an_answer_that_waits(self, engine: Engine, first: ReplyKind, then: ReplyKind) -> None:
        made = tickets(engine)
        made.come(first, "m1")
        made.failed.status = type(made.failed.status)()  # it runs in each status

        outcome = made.come(then, "m2")
        assert (outcome.kind, outcome.reason) == (Kind.DROPPED, "overtaken")
        made.become("open")
        made.released()
        assert made.seen == [f"came {first}"]

    def test_gather_whose_time_ends_while_its_end_waits(self, engine: Engine) -> None:
        """Its answers are not collected any more: the step for too few of them must not run."""
        made = tickets(engine)
        made.come(ReplyKind.GATHERED, "m1")
        made.failed.status = type(made.failed.status)()

        over = Addressed(made.record.id, "r1", ReplyKind.GATHERED)
        assert engine.handle(made.failed, id="m1", addressed=over, failure="too few").kind is Kind.DROPPED
        assert [each.id for each in made.deferred] == ["m1"]

    @pytest.mark.parametrize("first", FAILURE_KINDS)
    def test_answer_after_a_failure_that_waits(self, engine: Engine, first: ReplyKind) -> None:
        """It is the first outcome that a step handles; the failure is dropped then."""
        made = tickets(engine)
        made.come(first, "m1")
        made.came.status = type(made.came.status)()

        assert made.come(ReplyKind.ANSWER, "m2").kind is Kind.HANDLED
        assert made.deferred == []
        made.released()
        assert made.seen == ["came answer"]

    def test_answer_that_is_ignored_while_a_failure_waits(self, engine: Engine) -> None:
        """The request has ended, and the failure is dropped at once."""
        made = tickets(engine)
        made.come(ReplyKind.FAILURE, "m1")
        made.came = handler(made.came.function, saga=Ticket, when="open", if_not="ignore")

        assert made.come(ReplyKind.ANSWER, "m2").kind is Kind.IGNORED
        assert (made.deferred, engine.publisher.ids) == ([], ["m1"])
        assert made.again("m1").kind is Kind.DROPPED

    def test_both_wait(self, engine: Engine) -> None:
        """They are handled in their order, as if they had come now."""
        made = tickets(engine)
        made.come(ReplyKind.DEADLINE, "m1")
        made.come(ReplyKind.ANSWER, "m2")
        made.become("open")

        assert made.released() == ["m1", "m2"]
        assert made.seen == ["failed deadline", "came answer late"]

    def test_deadline_is_withdrawn_when_the_answer_is_handled(self, engine: Engine, backend: MemoryBackend) -> None:
        made = tickets(engine)
        made.come(ReplyKind.ANSWER)
        assert [row.kind for row in rows(backend)].count("deadline") == 1
        made.become("open")
        made.released()
        assert [row.kind for row in rows(backend)].count("deadline") == 0


class TestTimeout:
    def change(self, made: Tickets, **timeout: object) -> None:
        """Cancel the timeout, or replace it."""

        def change(ticket: Ticket, number: str) -> None:
            pending = ticket._context.pending  # type: ignore[union-attr]
            pending.unschedule("once")
            if timeout:
                pending.schedule("once", SerializedMessage("t2", "t2", "ticket.tick", "{}", DUE), DUE)

        made.send(handler(change, saga=Ticket), "changes")

    @pytest.mark.parametrize("again", [{}, {"after": 1}], ids=["cancelled", "replaced"])
    def test_that_is_cancelled_while_it_waits(self, engine: Engine, again: dict[str, object]) -> None:
        """It is published, and dropped, at once: it does not wait for nothing."""
        made = tickets(engine)
        made.come("timeout")
        self.change(made, **again)

        assert made.deferred == []
        made.become("open")
        assert made.again("m1").kind is Kind.DROPPED
        assert made.seen == []


class TestSeries:
    """Of a series one occurrence waits: what was missed is not made up for."""

    def occurrence(self, made: Tickets, number: int) -> Kind:
        due_at = DUE + number * 1_000
        return made.send(made.tick, f"m{number}", addressed=Addressed(made.record.id, "s1", due_at=due_at)).kind

    def test_second_one_is_dropped(self, engine: Engine) -> None:
        made = tickets(engine)
        kinds = [self.occurrence(made, number) for number in range(3)]

        assert kinds == [Kind.DEFERRED, Kind.DROPPED, Kind.DROPPED]
        assert [each.id for each in made.deferred] == ["m0"]
        made.become("open")
        made.released()
        assert made.seen == ["tick"]

    def test_repeat_of_the_one_that_waits(self, engine: Engine) -> None:
        made = tickets(engine)
        self.occurrence(made, 0)
        version = made.record.version
        assert (self.occurrence(made, 0), made.record.version) == (Kind.DEFERRED, version)

    def test_series_that_ends(self, engine: Engine) -> None:
        def ends(ticket: Ticket, number: str) -> None:
            ticket._context.pending.unschedule("often")  # type: ignore[union-attr]

        made = tickets(engine)
        self.occurrence(made, 0)
        made.send(handler(ends, saga=Ticket), "ends")
        assert (made.deferred, made.again("m0").kind) == ([], Kind.DROPPED)
