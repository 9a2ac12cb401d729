"""Answers at an instance: addressed, awaited, handled once, and written down."""

import json
from dataclasses import replace
from typing import Any

import pytest

from celery_sagas.core.pending import Pending, read_pending
from celery_sagas.core.requests import views
from celery_sagas.core.requests.requests import Addressed, ReplyKind, Request, ReturnAddress, Target
from celery_sagas.core.requests.views import RequestView
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.engine.dead_letters.cancellation import Cancellation
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import CorrelationError, InvalidMessage, InvalidState
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import OutboxRow
from tests.engine.conftest import Boom, Engine, Order, handler, starter
from tests.engine.dead_letters.test_cancellation import dead_letter

DUE = 4_000_000_000_000
RETRIES = 2


def place(order: State, order_id: str, ask: bool = True) -> None:
    """Ask for a payment."""
    assert order._context is not None
    if ask:
        request = Request("r1", "charge", "order.paid", "order.unpaid", at=DUE)
        order._context.pending.new_requests["r1"] = request, SerializedMessage("d1", "d1", "order.unpaid", "{}", DUE)


def paid(order: State, receipt: Any, order_id: str | None = None) -> str:
    """Note a receipt, and whether it is late."""
    assert isinstance(order, Order)
    order.note += f"paid {receipt}{' late' if order.saga.message.late else ''};"
    if receipt == "boom":
        raise Boom
    return f"thanks for {receipt}"


def unpaid(order: State, failure: Any) -> None:
    """Note a failure."""
    assert isinstance(order, Order)
    order.note += f"unpaid {failure};"


def end(order: State, order_id: str) -> str:
    """Complete the order."""
    assert isinstance(order, Order)
    order.complete()
    return "ended"


PLACE, PAID, UNPAID, END = starter(place), handler(paid), handler(unpaid), handler(end)
ONLY_NEW, ONLY_KNOWN = starter(place, if_exists="ignore"), handler(end, if_missing="ignore")
ASKER = ReturnAddress("cart", "c1", "asked", Target("cart.done"), Target("cart.failed"))


@pytest.fixture
def asking(engine: Engine) -> Engine:
    """An engine with the order 42, which has asked."""
    engine.handle(PLACE, id="m1", order_id="42")
    return engine


def came(engine: Engine, came: ReplyKind, id: str = "r1") -> Addressed:
    """Return where something goes that came of a request of the order 42."""
    record = engine.record()
    assert record is not None
    return Addressed(record.id, id, came)


def note(engine: Engine) -> str:
    """Return what the order 42 has noted."""
    text: str = engine.data()["note"]
    return text


def pending(engine: Engine) -> Pending:
    """Return what the order 42 waits for."""
    record = engine.record()
    assert record is not None
    return read_pending(record.pending)


def rows(backend: MemoryBackend) -> list[OutboxRow]:
    """Return the rows of the outbox."""
    return [row.message for row in backend.outbox._state.outbox._by_id.values()]


def detail(engine: Engine, key: str = "42") -> dict[str, Any]:
    """Return what the last entry of the journal says."""
    told: dict[str, Any] = json.loads(engine.entries(key)[-1].detail)
    return told


class TestRequest:
    """What a step asks for is committed with it."""

    def test_is_kept_with_its_deadline(self, asking: Engine, backend: MemoryBackend) -> None:
        (row,) = rows(backend)
        assert (row.kind, row.task, row.message_id, row.due_at) == ("deadline", "order.unpaid", "d1", DUE)
        assert pending(asking).requests == {"r1": Request("r1", "charge", "order.paid", "order.unpaid", row.id, DUE)}

    def test_journal(self, asking: Engine) -> None:
        asked = {"request": "r1", "task": "charge", "then": "order.paid", "otherwise": "order.unpaid", "until": DUE}
        assert detail(asking) == {"asked": [asked], "deadline": [{"task": "order.unpaid", "id": "d1"}]}

    def test_instance_that_completes_keeps_none(self, engine: Engine, backend: MemoryBackend) -> None:
        def place_and_end(order: State, order_id: str) -> None:
            place(order, order_id)
            end(order, order_id)

        engine.handle(starter(place_and_end), order_id="42")
        assert (engine.record(), rows(backend)) == (None, [])

    def test_completing_removes_the_deadline(self, asking: Engine, backend: MemoryBackend) -> None:
        asking.handle(END, order_id="42")
        assert rows(backend) == []

    def test_what_is_open_is_made_if_a_step_reads_it(self, asking: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        """Once, and for nobody else."""
        made: list[str] = []
        seen: list[list[str]] = []

        def made_for(request: Request) -> RequestView:
            made.append(request.id)
            return RequestView(request.id, request.task, None)

        def look(order: State, order_id: str) -> None:
            assert isinstance(order, Order)
            seen.extend([list(order.saga.requests), list(order.saga.requests)])

        monkeypatch.setattr(views, "_view", made_for)
        asking.handle(starter(place), order_id="42", ask=False)
        asking.handle(PAID, order_id="42", receipt="R")
        assert made == []
        asking.handle(handler(look), order_id="42")
        assert (seen, made) == ([["r1"], ["r1"]], ["r1"])

    def test_too_many(self, engine: Engine) -> None:
        def ask(order: State, order_id: str, count: int) -> None:
            assert order._context is not None
            for number in range(count):
                order._context.pending.new_requests[f"r{number}"] = Request(f"r{number}", "charge", "order.paid"), None

        engine.handle(starter(ask), order_id="42", count=1_000)
        with pytest.raises(InvalidState, match="it waits for 1001 answers"):
            engine.handle(starter(ask), order_id="43", count=1_001)

    def test_parts_that_newer_code_has_added_stay(self, asking: Engine) -> None:
        asking.rewrite(pending=Pending(more={"children": ["c1"]}).text())
        asking.handle(PLACE, order_id="42")

        assert (pending(asking).more, list(pending(asking).requests)) == ({"children": ["c1"]}, ["r1"])

    def test_timed_out_ones_do_not_count(self, asking: Engine) -> None:
        old = {f"o{number}": Request(f"o{number}", "t", "order.paid", at=1, has_timed_out=True) for number in range(1_000)}
        new = {f"n{number}": Request(f"n{number}", "t", "order.paid") for number in range(999)}
        asking.rewrite(pending=Pending(requests={**old, **new}).text())
        asking.handle(PLACE, order_id="42")

        assert len(pending(asking).requests) == 2_000


class TestAnswer:
    """It is handled while it is waited for."""

    def test_is_handled(self, asking: Engine, backend: MemoryBackend) -> None:
        outcome = asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert (outcome.kind, note(asking)) == (Kind.HANDLED, "paid a;")
        assert (pending(asking).requests, rows(backend)) == ({}, [])
        assert detail(asking) == {"request": "r1", "came": "answer"}

    def test_that_is_doubled(self, asking: Engine) -> None:
        address = came(asking, ReplyKind.ANSWER)
        asking.handle(PAID, id="answer", addressed=address, receipt="a")
        version = asking.record()
        assert asking.handle(PAID, id="answer", addressed=address, receipt="a").kind is Kind.DUPLICATE
        assert asking.handle(PAID, id="another", addressed=address, receipt="b").kind is Kind.DROPPED

        assert asking.record() == version
        assert asking.entry(PAID, "another") is None

    def test_two_at_once(self, asking: Engine, rival: Engine) -> None:
        """They meet at the commit."""
        address = came(asking, ReplyKind.ANSWER)
        store = asking.interpose()
        store.once_before("update", lambda: rival.handle(PAID, id="first", addressed=address, receipt="first"))
        outcome = asking.handle(PAID, id="second", addressed=address, receipt="second")

        assert (outcome.kind, outcome.reason) == (Kind.DROPPED, "cancelled")
        assert note(asking) == "paid first;"

    def test_and_its_failure_at_once(self, asking: Engine, rival: Engine) -> None:
        store = asking.interpose()
        failure = came(asking, ReplyKind.FAILURE)
        store.once_before("update", lambda: rival.handle(UNPAID, addressed=failure, failure="x"))

        assert asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a").kind is Kind.DROPPED
        assert note(asking) == "unpaid x;"

    def test_and_its_deadline_at_once(self, asking: Engine, rival: Engine) -> None:
        """Both are handled, the answer late."""
        store = asking.interpose()
        deadline = came(asking, ReplyKind.DEADLINE)
        store.once_before("update", lambda: rival.handle(UNPAID, addressed=deadline, failure="over"))
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert note(asking) == "unpaid over;paid a late;"
        assert pending(asking).requests == {}

    def test_deadline_after_its_answer(self, asking: Engine) -> None:
        deadline = came(asking, ReplyKind.DEADLINE)
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert asking.handle(UNPAID, addressed=deadline, failure="over").kind is Kind.DROPPED

    def test_after_its_deadline(self, asking: Engine, backend: MemoryBackend) -> None:
        asking.handle(UNPAID, addressed=came(asking, ReplyKind.DEADLINE), failure="over")
        (request,) = pending(asking).requests.values()
        assert (request.has_timed_out, request.row) == (True, "")
        assert detail(asking) == {"request": "r1", "came": "deadline"}
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert note(asking) == "unpaid over;paid a late;"
        assert detail(asking) == {"request": "r1", "came": "answer", "late": True}

    def test_failure_after_the_deadline(self, asking: Engine) -> None:
        asking.handle(UNPAID, addressed=came(asking, ReplyKind.DEADLINE), failure="over")

        assert asking.handle(UNPAID, addressed=came(asking, ReplyKind.FAILURE), failure="x").kind is Kind.DROPPED
        assert len(pending(asking).requests) == 1

    def test_while_the_instance_handles_something_else(self, asking: Engine, rival: Engine) -> None:
        store = asking.interpose()
        store.once_before("update", lambda: rival.handle(PLACE, order_id="42", ask=False))
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert note(asking) == "paid a;"

    def test_step_that_fails_waits_on(self, asking: Engine) -> None:
        with pytest.raises(Boom):
            asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="boom")
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert note(asking) == "paid a;"

    @pytest.mark.parametrize(
        ("step", "what"),
        [(PAID, ReplyKind.FAILURE), (PAID, ReplyKind.DEADLINE), (PAID, ReplyKind.GATHERED)],
        ids=["failure", "deadline", "all"],
    )
    def test_at_another_step_than_was_named(self, asking: Engine, step: Any, what: ReplyKind) -> None:
        wrong = replace(PAID, name="order.other")
        assert asking.handle(wrong, addressed=came(asking, ReplyKind.ANSWER), receipt="a").kind is Kind.DROPPED
        if what is not ReplyKind.GATHERED:
            assert asking.handle(step, addressed=came(asking, what), receipt="a").kind is Kind.DROPPED
        assert len(pending(asking).requests) == 1

    def test_of_another_request(self, asking: Engine) -> None:
        assert asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER, "r2"), receipt="a").kind is Kind.DROPPED

    def test_timeout_of_the_same_id_is_none(self, asking: Engine) -> None:
        record = asking.record()
        assert record is not None
        assert asking.handle(PAID, addressed=Addressed(record.id, "r1"), receipt="a").kind is Kind.DROPPED

    def test_instance_gone(self, asking: Engine) -> None:
        address = came(asking, ReplyKind.ANSWER)
        asking.handle(END, order_id="42")
        outcome = asking.handle(PAID, addressed=address, receipt="a")

        assert (outcome.kind, outcome.reason) == (Kind.DROPPED, "completed")
        assert asking.record() is None

    def test_later_instance_of_the_key(self, asking: Engine) -> None:
        address = came(asking, ReplyKind.ANSWER)
        asking.handle(END, order_id="42")
        asking.handle(PLACE, order_id="42")

        assert asking.handle(PAID, addressed=address, receipt="a").kind is Kind.DROPPED
        assert note(asking) == ""

    def test_that_names_another_instance(self, asking: Engine) -> None:
        with pytest.raises(CorrelationError, match="it is addressed to order '42', and names '43'"):
            asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a", order_id="43")

    def test_step_under_an_earlier_name(self, asking: Engine) -> None:
        renamed = replace(PAID, name="order.settled", formerly=("order.paid",))
        asking.handle(renamed, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert note(asking) == "paid a;"

    def test_belongs_to_its_instance(self, asking: Engine) -> None:
        record = asking.record()
        assert record is not None
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), causation={"cart": "c1"}, receipt="a")

        assert asking.session is not None
        assert asking.session.causation == {"cart": "c1", "order": record.id}


class TestReply:
    """A message that asks for an answer gets one with the commit."""

    def sent(self, engine: Engine) -> list[tuple[str, Any]]:
        """Return what was answered."""
        return [(row.message_id, json.loads(row.payload)) for row in engine.publisher.published]

    def test_handler_answers_by_its_result(self, asking: Engine) -> None:
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), asked_by=ASKER, receipt="a")

        assert self.sent(asking) == [("answer to asked", "thanks for a")]
        assert detail(asking)["sent"] == [{"task": "answer", "id": "answer to asked"}]

    def test_handler_that_fails_answers_nothing(self, asking: Engine) -> None:
        with pytest.raises(Boom):
            asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), asked_by=ASKER, receipt="boom")
        assert self.sent(asking) == []

    def test_repeat_answers_nothing(self, asking: Engine) -> None:
        for _ in range(2):
            asking.handle(PLACE, id="m2", asked_by=ASKER, order_id="42", ask=False)
        assert self.sent(asking) == [("answer to asked", None)]

    def test_conflict_answers_once(self, asking: Engine, rival: Engine) -> None:
        asking.interpose().once_before("update", lambda: rival.handle(PLACE, order_id="42", ask=False))
        asking.handle(PLACE, asked_by=ASKER, order_id="42", ask=False)
        assert self.sent(asking) == [("answer to asked", None)]

    def test_who_creates_an_instance_waits_for_it(self, engine: Engine) -> None:
        engine.handle(PLACE, asked_by=ASKER, order_id="42")

        assert self.sent(engine) == []
        assert pending(engine).requester == ASKER.to_json()

    def test_completing_answers_with_nothing(self, engine: Engine) -> None:
        engine.handle(PLACE, asked_by=ASKER, order_id="42")
        engine.handle(END, order_id="42")

        assert self.sent(engine) == [("answer to asked", "no value")]

    def test_completing_at_birth(self, engine: Engine) -> None:
        outcome = engine.handle(starter(end), asked_by=ASKER, order_id="42")

        assert outcome.kind is Kind.COMPLETED
        assert self.sent(engine) == [("answer to asked", "no value")]

    def test_start_race_is_answered_by_the_step(self, engine: Engine, rival: Engine) -> None:
        """Another message has created the instance meanwhile."""
        engine.interpose().once_before("insert", lambda: rival.handle(PLACE, order_id="42"))
        engine.handle(PLACE, asked_by=ASKER, order_id="42", ask=False)

        assert self.sent(engine) == [("answer to asked", None)]
        assert pending(engine).requester is None

    @pytest.mark.parametrize("step", [ONLY_NEW, ONLY_KNOWN], ids=["exists", "missing"])
    def test_what_is_ignored_is_answered_with_nothing(self, asking: Engine, step: Any) -> None:
        key = "42" if step is ONLY_NEW else "43"
        outcome = asking.handle(step, asked_by=ASKER, order_id=key)

        assert outcome.kind is Kind.IGNORED
        assert self.sent(asking) == [("answer to asked", "no value")]

    def test_middle_of_a_chain_answers_nothing(self, engine: Engine) -> None:
        """Nor is it the one who has started the instance."""
        engine.handle(PLACE, asked_by=ASKER._replace(then=None), order_id="42", ask=False)
        engine.handle(END, asked_by=ASKER._replace(then=None), order_id="42")

        assert self.sent(engine) == []

    def test_answer_that_cannot_be_encoded_commits_nothing(self, asking: Engine) -> None:
        def refuse(*_: object) -> None:
            raise InvalidMessage("cart.done", [("", "no")])

        terms = replace(asking.services.terms, answer=refuse)  # type: ignore[arg-type]
        asking.services = replace(asking.services, terms=terms)
        before = asking.record()
        with pytest.raises(InvalidMessage):
            asking.handle(PLACE, asked_by=ASKER, order_id="42")
        assert asking.record() == before


class TestDiscarded:
    """The dead letter of what came of a request is discarded, as if that had been handled."""

    def discard(self, engine: Engine, what: ReplyKind) -> bool:
        return Cancellation(dead_letter(), ("order",), came(engine, what)).perform(engine.backend, RETRIES)

    @pytest.mark.parametrize("what", [ReplyKind.ANSWER, ReplyKind.FAILURE])
    def test_request_is_over(self, asking: Engine, backend: MemoryBackend, what: ReplyKind) -> None:
        assert self.discard(asking, what)
        assert (pending(asking).requests, rows(backend)) == ({}, [])
        assert not self.discard(asking, what)

    def test_after_a_deadline_an_answer_may_come(self, asking: Engine) -> None:
        assert self.discard(asking, ReplyKind.DEADLINE)
        asking.handle(PAID, addressed=came(asking, ReplyKind.ANSWER), receipt="a")

        assert note(asking) == "paid a late;"

    def test_request_that_is_over_already(self, asking: Engine) -> None:
        address = came(asking, ReplyKind.ANSWER)
        asking.handle(PAID, addressed=address, receipt="a")

        assert not Cancellation(dead_letter(), ("order",), address).perform(asking.backend, RETRIES)
