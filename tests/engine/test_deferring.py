"""Messages that come in another status: each kind of message, by each policy."""

import json
from functools import partial

import pytest

from celery_sagas.core.requests.requests import FAILURES, ReplyKind
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.session import Delivery, Session
from celery_sagas.errors import WrongStatus
from celery_sagas.stores.memory.backend import MemoryBackend
from tests.engine.conftest import Boom, Engine, handler, send
from tests.engine.tickets import ASKER, MESSAGES, NOW, Ticket, Tickets, define, rewrite, rows, steps, tickets

__all__ = ["steps"]
pytestmark = pytest.mark.usefixtures("steps")

every_message = pytest.mark.parametrize("what", MESSAGES)
plain_message = pytest.mark.parametrize("what", ["message", "starter"])
#: What a ticket notes of each kind of message.
NOTED = {"message": "worked 1", "starter": "began 1", "timeout": "tick", "series": "tick"}


def noted(what: str) -> str:
    """Return what a ticket notes of a kind of message."""
    return NOTED.get(what) or f"{'failed' if what in FAILURES else 'came'} {what}"


class TestRaise:
    @every_message
    def test_nothing_is_written(self, engine: Engine, what: str) -> None:
        made = tickets(engine, "raise")
        before, entries = made.record, made.entries

        with pytest.raises(WrongStatus) as raised:
            made.come(what)

        error = raised.value
        assert (error.saga, error.key, error.status, error.expected) == ("ticket", "1", "new", "when it is 'open'")
        assert (error.step, error.waited) == (made.sent["m1"][0].name, 0)
        assert (made.record, made.entries, engine.publisher.published) == (before, entries, [])

    @every_message
    def test_it_is_handled_in_the_right_status(self, engine: Engine, what: str) -> None:
        made = tickets(engine, "raise")
        with pytest.raises(WrongStatus):
            made.come(what)
        made.become("open")

        assert made.again("m1").kind is Kind.HANDLED
        assert made.seen == [noted(what)]


class TestIgnore:
    @every_message
    def test_is_journaled_with_its_reason(self, engine: Engine, what: str) -> None:
        made = tickets(engine, "ignore")
        before = made.record

        outcome = made.come(what)

        entry = made.entries[-1]
        assert (outcome.kind, outcome.reason, outcome.message_id) == (Kind.IGNORED, "status", "m1")
        assert (outcome.key, outcome.instance_id, outcome.version) == ("1", before.id, before.version + 1)
        assert (entry.outcome, entry.message_id, entry.version) == ("ignored", "m1", before.version + 1)
        assert json.loads(entry.detail)["reason"] == "status"
        assert (made.record.data, made.record.version) == (before.data, before.version + 1)
        assert engine.publisher.published == []

    @every_message
    def test_repeat_is_a_duplicate(self, engine: Engine, what: str) -> None:
        made = tickets(engine, "ignore")
        made.come(what)
        made.become("open")

        assert made.again("m1").kind is Kind.DUPLICATE
        assert made.seen == []

    @pytest.mark.parametrize("what", ["timeout", *ReplyKind])
    def test_is_awaited_no_more(self, engine: Engine, what: str) -> None:
        """But for an interim answer: the request stays open."""
        made = tickets(engine, "ignore")
        made.come(what)
        assert made.is_awaited(what) is (what == ReplyKind.PROGRESS)

    def test_series_goes_on(self, engine: Engine) -> None:
        made = tickets(engine, "ignore")
        made.come("series")

        assert made.is_awaited("series")
        assert made.series().handled_at > 0

    def test_answer_cancels_the_deadline(self, engine: Engine, backend: MemoryBackend) -> None:
        made = tickets(engine, "ignore")
        made.come(ReplyKind.ANSWER)
        assert [row.message_id for row in rows(backend) if row.kind == "deadline"] == []

    def test_late_answer_after_an_ignored_deadline(self, engine: Engine) -> None:
        made = tickets(engine, "ignore")
        made.come(ReplyKind.DEADLINE, "m1")
        made.become("open")
        made.come(ReplyKind.ANSWER, "m2")

        assert made.seen == ["came answer late"]

    @plain_message
    def test_requester_is_answered_with_nothing(self, engine: Engine, what: str) -> None:
        tickets(engine, "ignore").come(what, asked_by=ASKER)
        assert [json.loads(sent.payload) for sent in engine.publisher.published] == ["no value"]

    @every_message
    def test_it_is_judged_by_what_is_stored(self, engine: Engine, rival: Engine, what: str) -> None:
        made = tickets(engine, "ignore")
        engine.interpose().once_before("update", lambda: Tickets(rival, "ignore").become("open") and None)

        assert made.come(what).kind is Kind.HANDLED
        assert made.seen == [noted(what)]


class TestDefer:
    @every_message
    def test_is_kept_with_the_instance(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        before = made.record

        outcome = made.come(what)

        (deferred,) = made.deferred
        assert (outcome.kind, outcome.reason, outcome.message_id) == (Kind.DEFERRED, "status", "m1")
        assert (outcome.key, outcome.instance_id, outcome.version) == ("1", before.id, before.version + 1)
        assert (deferred.id, deferred.step, deferred.since) == ("m1", made.sent["m1"][0].name, NOW)
        assert (made.record.data, made.record.version) == (before.data, before.version + 1)
        assert engine.publisher.published == []

    @every_message
    def test_journal_does_not_know_the_message_yet(self, engine: Engine, backend: MemoryBackend, what: str) -> None:
        made = tickets(engine)
        made.come(what)

        entry = made.entries[-1]
        assert (entry.outcome, json.loads(entry.detail)["reason"]) == ("deferred", "status")
        assert engine.entry(made.sent["m1"][0], "m1") is None

    @pytest.mark.parametrize("what", ["timeout", "series", *ReplyKind])
    def test_is_awaited_as_before(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        before = made.pending
        made.come(what)

        assert (made.pending.timeouts, made.pending.requests) == (before.timeouts, before.requests)

    @every_message
    def test_repeat_is_dropped_while_it_waits(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        made.come(what)
        before = made.record

        assert made.again("m1").kind in (Kind.DEFERRED, Kind.DROPPED)
        assert made.record == before

    @every_message
    def test_commit_that_admits_it_publishes_it(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        made.come(what)

        made.become("shut")
        assert engine.publisher.published == []
        made.become("open", id="opens")

        (published,) = engine.publisher.published
        assert (published.message_id, published.task) == ("m1", made.sent["m1"][0].name)
        assert made.deferred == []
        assert json.loads(made.entries[-1].detail)["sent"] == [{"task": published.task, "id": "m1"}]

    @every_message
    def test_is_handled_once(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        made.come(what)
        made.become("open")

        assert made.released() == ["m1"]
        assert made.again("m1").kind is Kind.DUPLICATE
        assert made.seen == [noted(what)]
        assert what in ("message", "starter") or made.is_awaited(what) is (what in ("series", ReplyKind.PROGRESS))

    @every_message
    def test_repeat_that_overtakes_the_release(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        made.come(what)
        made.become("open")
        assert made.again("m1").kind is Kind.HANDLED
        assert [made.again("m1").kind for _ in made.released()] == [Kind.DUPLICATE]
        assert made.seen == [noted(what)]

    @every_message
    def test_meets_another_status_again(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        made.come(what)
        made.become("open")
        made.become("shut")
        engine.publisher.published.clear()
        engine.now += 1_000

        assert made.again("m1", since=NOW).kind is Kind.DEFERRED
        assert [(each.id, each.since) for each in made.deferred] == [("m1", NOW)]
        made.become("open")
        made.released()
        assert made.seen == [noted(what)]

    @plain_message
    def test_requester_is_answered_when_it_is_handled(self, engine: Engine, what: str) -> None:
        made = tickets(engine)
        made.come(what, asked_by=ASKER)
        assert engine.publisher.published == []
        made.become("open")
        made.released()

        answers = [json.loads(sent.payload) for sent in engine.publisher.published]
        assert answers == ["done 1" if what == "message" else "begun 1"]

    @every_message
    def test_it_is_judged_by_what_is_stored(self, engine: Engine, rival: Engine, what: str) -> None:
        """Else it waits for a commit that is over."""
        made = tickets(engine)
        engine.interpose().once_before("update", lambda: Tickets(rival, "defer").become("open") and None)

        assert made.come(what).kind is Kind.HANDLED
        assert (made.seen, made.deferred) == ([noted(what)], [])

    @every_message
    def test_rival_that_has_deferred_it(self, engine: Engine, rival: Engine, what: str) -> None:
        """A message was delivered twice at the same time."""
        made = tickets(engine)
        engine.interpose().once_before("update", lambda: Tickets(rival, "defer").come(what) and None)
        made.come(what)
        assert [each.id for each in made.deferred] == ["m1"]


class TestRelease:
    def test_order_is_that_of_arrival(self, engine: Engine) -> None:
        made = tickets(engine)
        for number in (3, 1, 2):
            made.send(made.work, f"m{number}", n=number)
        made.become("open")

        assert engine.publisher.ids == ["m3", "m1", "m2"]

    def test_order_is_that_of_the_first_arrival(self, engine: Engine) -> None:
        """A message that was released, and deferred again, does not lose its place."""
        made = tickets(engine)
        made.send(made.work, "m1", n=1)
        made.become("open")
        made.become("shut")
        engine.publisher.published.clear()
        engine.now += 1_000
        made.send(made.work, "m2", n=2)
        made.again("m1", since=NOW)

        assert [each.id for each in made.deferred] == ["m1", "m2"]
        made.become("open")
        assert engine.publisher.ids == ["m1", "m2"]

    def test_follows_what_the_step_sends(self, engine: Engine) -> None:
        def mails(ticket: Ticket, number: str) -> None:
            ticket.status = "open"
            send(ticket, "mail")

        made = tickets(engine)
        made.come("message")
        made.send(handler(mails, saga=Ticket), "mails")

        assert [sent.task for sent in engine.publisher.published] == ["mail", "ticket.work"]
        assert [sent.id for sent in engine.publisher.published] == sorted(sent.id for sent in engine.publisher.published)

    def test_handler_that_fails_releases_nothing(self, engine: Engine) -> None:
        def fails(ticket: Ticket, number: str) -> None:
            ticket.status = "open"
            raise Boom

        made = tickets(engine)
        made.come("message")
        with pytest.raises(Boom):
            made.send(handler(fails, saga=Ticket), "fails")

        assert engine.publisher.published == []
        assert [each.id for each in made.deferred] == ["m1"]

    def test_instance_that_completes_releases_all(self, engine: Engine, backend: MemoryBackend) -> None:
        made = tickets(engine, defer_for=60)
        for number, what in enumerate(("message", "timeout", ReplyKind.ANSWER, "starter")):
            made.come(what, f"m{number}")
        made.send(made.end, "ends")

        assert engine.publisher.ids == ["m0", "m1", "m2", "m3"]
        outcomes = [made.again(f"m{number}").kind for number in range(4)]
        assert outcomes == [Kind.IGNORED, Kind.DROPPED, Kind.DROPPED, Kind.STARTED]
        assert [row for row in rows(backend) if row.kind == "scheduled"] == []

    @plain_message
    def test_next_instance_of_the_key(self, engine: Engine, what: str) -> None:
        """The message may wait with it as it has waited with the one before."""
        made = tickets(engine)
        made.come(what)
        made.send(made.end, "ends")
        engine.handle(made.begin, id="b2", number="1")
        engine.handle(made.ask, id="a2", number="1")

        assert made.again("m1").kind is Kind.DEFERRED
        made.become("open")
        assert engine.entry(made.work, "m1") is None
        assert engine.publisher.ids == ["m1", "m1"]
        assert made.again("m1").kind is Kind.HANDLED

    @pytest.mark.parametrize("moment", [{}, {"defer_for": 60}], ids=["without an end", "with an end"])
    def test_adds_no_operation(self, engine: Engine, moment: dict[str, object]) -> None:
        """It is part of the commit that admits the message, and published with what that sends."""
        made = tickets(engine, **moment)
        store = engine.interpose()
        made.become("shut")
        without, store.calls[:] = list(store.calls), []
        made.come("message")
        store.calls.clear()
        made.become("open")

        assert store.calls == without == ["find", "update"]
        assert engine.publisher.ids == ["m1"]

    def test_unknown_step(self, engine: Engine) -> None:
        """Newer code has deferred it: it waits for that, or for the end of the instance."""
        made = tickets(engine)
        made.come("message")
        rewrite(made, made.record.pending.replace("ticket.work", "ticket.newer"))
        made.become("open")
        assert [each.step for each in made.deferred] == ["ticket.newer"]

        made.send(made.end, "ends")
        assert [sent.task for sent in engine.publisher.published] == ["ticket.newer"]

    def test_former_name_of_a_step(self, engine: Engine) -> None:
        made = tickets(engine)
        made.come("message")
        rewrite(made, made.record.pending.replace("ticket.work", "ticket.job"))
        renamed = handler(made.work.function, saga=Ticket, formerly="ticket.job", when="open", if_not="defer")
        define(renamed)
        version = made.record.version
        assert engine.handle(renamed, id="m1", number="1").kind is Kind.DEFERRED
        assert made.record.version == version

        made.become("open")
        assert [(sent.task, sent.message_id) for sent in engine.publisher.published] == [("ticket.job", "m1")]

    def test_step_that_always_runs_now(self, engine: Engine) -> None:
        """Code has changed: the next commit publishes what waits."""
        made = tickets(engine)
        made.come("message")
        define(handler(made.work.function, saga=Ticket))
        made.become("shut")

        assert engine.publisher.ids == ["m1"]


class TestBatch:
    def test_messages_of_one_instance(self, backend: MemoryBackend) -> None:
        """They are judged one after the other, each by the status that the one before has left."""
        engine = Engine(backend)
        made = tickets(engine)
        sent = [(made.work, "m1", {"n": 1}), (made.begin, "m2", {"status": "open"}), (made.work, "m3", {"n": 3})]
        deliveries = [self.delivery(engine, step, id, {"number": "1", **given}) for step, id, given in sent]

        outcomes = engine.handle_together(*deliveries)
        assert [outcome and outcome.kind for outcome in outcomes] == [Kind.DEFERRED, Kind.HANDLED, Kind.HANDLED]
        assert (made.seen, engine.publisher.ids) == (["worked 3"], ["m1"])

    def test_message_that_is_refused_is_left(self, backend: MemoryBackend) -> None:
        """It is handled alone, where it fails."""
        engine = Engine(backend)
        made = tickets(engine, "raise")
        assert engine.handle_together(self.delivery(engine, made.work, "m1", {"number": "1"})) == [None]

    def delivery(self, engine: Engine, step: StepDefinition, id: str, message: dict[str, object]) -> Delivery:
        session = Session(id)
        delivery = Delivery(step, id, message, session, lambda function, first, **given: function(first, **given))
        return delivery._replace(deferral=partial(engine.deferral, delivery))
