"""Saga to saga: a step asks a step of another saga, and the answer finds its way back without a key."""

import json
import logging
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery, chain
from pydantic import SecretStr

from celery_sagas import Message, Missing, Saga
from celery_sagas.core.ids import derived_id
from celery_sagas.core.pending import read_pending
from celery_sagas.errors import InvalidMessage, MisuseError, PublishError
from celery_sagas.stores.records import KEY, Change, Lookup
from celery_sagas.testing.samples import effects
from celery_sagas.worker.headers import CAUSATION
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of, interposed
from tests.worker.requests.orders import Boom, Shop, only, shop

__all__ = ["shop"]


class Parcels:
    """Another saga, and what its steps do in a test."""

    def __init__(self) -> None:
        class Parcel(Saga, correlate_by="parcel_id"):
            parcel_id: str
            count: int = 0

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str) -> Any:
            parcel.count += 1
            return self.pack_does(parcel)

        @Parcel.starts(if_exists="ignore")
        def pack_once(parcel: Parcel, parcel_id: str) -> Any:
            parcel.count += 1
            return self.pack_does(parcel)

        @Parcel.starts(if_exists="raise")
        def pack_new(parcel: Parcel, parcel_id: str) -> Any:
            parcel.count += 1

        @Parcel.handles
        def weigh(parcel: Parcel, parcel_id: str) -> Any:
            parcel.count += 1
            return self.weigh_does(parcel)

        @Parcel.handles
        def lost(parcel: Parcel) -> Any:
            return self.weigh_does(parcel)

        @Parcel.handles(if_missing="raise")
        def weigh_known(parcel: Parcel, parcel_id: str) -> Any: ...

        self.saga, self.pack, self.pack_once, self.pack_new = Parcel, pack, pack_once, pack_new
        self.weigh, self.weigh_known, self.lost = weigh, weigh_known, lost
        self.pack_does: Any = lambda parcel: "return of the first step"
        self.weigh_does: Any = lambda parcel: "5 kg"


@pytest.fixture
def parcels(shop: Shop) -> Parcels:
    """The other saga."""
    return Parcels()


def taking(shop: Shop, kind: Any) -> Any:
    """Define a step of the order that takes an answer of a type."""

    @shop.saga.handles
    def came(order: Any, answer: kind) -> None:
        order.note(f"came {answer}")

    return came


def ask(shop: Shop, worker: Worker, step: Any, key: str = "42", **options: Any) -> Any:
    """Have an order ask a step of the other saga about the parcel 1; return the message that waits."""
    options = {"then": "paid", "otherwise": "unpaid", **options}
    shop.place(worker, lambda order: order.send(step.s("1"), **options), key)
    return worker.waiting()[-1]


class TestStarter:
    """A step that creates an instance: the instance answers, now or in a year."""

    def test_answers_by_reply(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: parcel.reply("packed")
        ask(shop, worker, parcels.pack)
        worker.run()

        assert shop.seen() == ["paid packed"]

    def test_its_return_is_no_answer(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.pack)
        worker.run()

        assert shop.seen() == []
        assert len(shop.pending().requests) == 1

    def test_answers_in_a_later_step(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        sent = ask(shop, worker, parcels.pack)
        worker.run()
        assert parcels.saga.find("1").saga.requester == sent.id
        parcels.weigh_does = lambda parcel: parcel.reply({"kg": 5})
        parcels.weigh.delay("1")
        worker.run()

        assert shop.seen() == ["paid {'kg': 5}"]
        assert parcels.saga.find("1").saga.requester is None

    def test_answers_from_a_timeout(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: parcel.schedule(parcels.lost, after=timedelta(days=365))
        ask(shop, worker, parcels.pack)
        worker.run()
        parcels.weigh_does = lambda parcel: parcel.reply("lost")
        shop.fire(*shop.rows())
        worker.run()

        assert shop.seen() == ["paid lost"]

    def test_answers_with_none_when_it_completes(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.pack)
        worker.run()
        parcels.weigh_does = lambda parcel: parcel.complete()
        parcels.weigh.delay("1")
        worker.run()

        assert shop.seen() == ["paid None"]

    def test_that_completes_at_birth(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: parcel.complete()
        ask(shop, worker, parcels.pack)
        worker.run()

        assert shop.seen() == ["paid None"]
        assert parcels.saga.find("1") is None

    def test_that_answers_and_completes_at_birth(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: (parcel.complete(), parcel.reply("done"))[0]
        ask(shop, worker, parcels.pack)
        worker.run()

        assert shop.seen() == ["paid done"]

    def test_first_answer_counts(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        said = []
        parcels.pack_does = lambda parcel: said.extend([parcel.reply("first"), parcel.reply("second")])
        ask(shop, worker, parcels.pack)
        worker.run()
        parcels.weigh_does = lambda parcel: said.append(parcel.reply("third"))
        parcels.weigh.delay("1")
        worker.run()

        assert said == [True, False, False]
        assert shop.seen() == ["paid first"]

    def test_nobody_has_asked(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        said = []
        parcels.pack_does = lambda parcel: said.append((parcel.reply("x"), parcel.saga.requester))
        parcels.pack.delay("1")
        worker.run()

        assert said == [(False, None)]
        assert [done.task for done in worker.done] == ["parcel.pack"]

    def test_view_while_it_is_new(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        seen = []
        parcels.pack_does = lambda parcel: seen.append(parcel.saga.requester)
        sent = ask(shop, worker, parcels.pack)
        worker.run()

        assert seen == [sent.id]

    @pytest.mark.parametrize("when", ["at once", "at the end"])
    def test_that_is_delivered_again(self, worker: Worker, shop: Shop, parcels: Parcels, when: str) -> None:
        parcels.pack_does = lambda parcel: parcel.reply("packed") if when == "at once" else None
        sent = ask(shop, worker, parcels.pack)
        worker.run()
        worker.deliver_again(sent)
        worker.run()
        assert shop.seen() == (["paid packed"] if when == "at once" else [])
        parcels.weigh_does = lambda parcel: parcel.complete()
        parcels.weigh.delay("1")
        worker.run()
        worker.deliver_again(sent)
        worker.run()

        assert shop.seen() == ["paid packed" if when == "at once" else "paid None"]
        assert parcels.saga.find("1") is None

    def test_that_completed_at_birth_is_delivered_again(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: (parcel.complete(), parcel.reply("done"))[0]
        sent = ask(shop, worker, parcels.pack)
        worker.run()
        worker.deliver_again(sent)

        assert worker.waiting() == []
        assert shop.seen() == ["paid done"]

    def test_that_fails_for_good(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        def fail(parcel: Any) -> None:
            parcel.reply("never")
            raise Boom("broken")

        parcels.pack_does = fail
        ask(shop, worker, parcels.pack)
        worker.run()

        assert shop.seen() == ["unpaid error"]
        assert (shop.failure().task, shop.failure().text) == ("parcel.pack", "broken")
        assert parcels.saga.find("1") is None

    def test_deadline_passes_and_the_answer_is_late(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.pack, within=3600)
        worker.run()
        shop.fire(*shop.rows())
        worker.run()
        parcels.weigh_does = lambda parcel: parcel.reply("at last")
        parcels.weigh.delay("1")
        worker.run()

        assert shop.seen() == ["unpaid deadline", "paid at last late"]

    @pytest.mark.parametrize(
        ("kind", "seen"), [(int, []), (int | None, ["came None late"]), (Any, ["came None late"])], ids=["value", "none", "any"]
    )
    def test_completes_without_a_reply_after_the_deadline(
        self, worker: Worker, shop: Shop, parcels: Parcels, caplog: pytest.LogCaptureFixture, kind: Any, seen: list[str]
    ) -> None:
        """It ends because it was told to: that is no answer of the type that is wanted."""
        caplog.set_level(logging.INFO)
        ask(shop, worker, parcels.pack, then=taking(shop, kind), within=timedelta(hours=1))
        worker.run()
        shop.fire(*shop.rows())
        worker.run()
        parcels.weigh_does = lambda parcel: parcel.complete()
        parcels.weigh.delay("1")
        worker.run()

        assert shop.seen() == ["unpaid deadline", *seen]
        assert backend_of(worker.app).dead.list(10) == []
        assert ("dropped: order '42' (late, and without a value)" in caplog.text) is not bool(seen)

    def test_completes_without_a_reply_in_time(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        """The step that wants a value fails, and the saga is told."""
        parcels.pack_does = lambda parcel: parcel.complete()
        ask(shop, worker, parcels.pack, then=taking(shop, int))
        worker.run()

        assert shop.seen() == ["unpaid unhandled"]

    @pytest.mark.parametrize("door", ["pack_once", "weigh"])
    def test_is_ignored_after_the_deadline(self, worker: Worker, shop: Shop, parcels: Parcels, door: str) -> None:
        """The parcel is there already, or is not there."""
        if door == "pack_once":
            parcels.pack("1")
        ask(shop, worker, getattr(parcels, door), then=taking(shop, int), within=timedelta(hours=1))
        waiting = only(worker)
        worker.app.control.purge()
        shop.fire(*shop.rows())
        worker.run()
        worker.deliver_again(waiting)
        worker.run()

        assert (shop.seen(), backend_of(worker.app).dead.list(10)) == (["unpaid deadline"], [])

    def test_by_a_direct_call_nobody_has_asked(self, app: Celery, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        """Although a task runs around it that was asked."""

        def work(task: Any) -> str:
            parcels.pack("1")
            return "receipt"

        shop.work = work
        shop.place(worker, lambda order: order.send(shop.charge.s(), then="paid"))
        worker.run()

        assert parcels.saga.find("1").saga.requester is None
        assert shop.seen() == ["paid receipt"]


class TestExisting:
    """A message to an instance that is there: its step answers by what it returns, with its commit."""

    @pytest.fixture(autouse=True)
    def packed(self, worker: Worker, parcels: Parcels) -> None:
        parcels.pack.delay("1")
        worker.run()

    def test_handler(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.seen() == ["paid 5 kg"]

    def test_starter_that_handles_it(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: f"packed {parcel.count}"
        ask(shop, worker, parcels.pack)
        worker.run()

        assert shop.seen() == ["paid packed 2"]

    def test_starter_that_ignores_it(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        """Nothing is done, and that is the answer."""
        sent = ask(shop, worker, parcels.pack_once)
        worker.run()
        worker.deliver_again(sent)
        worker.run()

        assert shop.seen() == ["paid None"]

    def test_starter_that_refuses_it(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.pack_new)
        worker.run()

        assert shop.failure().error == "SagaAlreadyExists"

    def test_that_it_completes(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.weigh_does = lambda parcel: (parcel.complete(), "gone")[1]
        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.seen() == ["paid gone"]

    def test_two_who_ask(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        """One has started the instance, the other one has asked a step of it that completes it."""
        parcels.saga.find("1")
        shop.place(worker, lambda order: order.send(parcels.pack.s("2"), then="paid"), "41")
        worker.run()
        parcels.weigh_does = lambda parcel: (parcel.complete(), "gone")[1]
        shop.place(worker, lambda order: order.send(parcels.weigh.s("2"), then="paid"), "42")
        worker.run()

        assert [shop.seen("41"), shop.seen("42")] == [["paid None"], ["paid gone"]]

    def test_reply_is_for_whoever_started_it(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.weigh_does = lambda parcel: parcel.reply("x")
        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.seen() == ["paid False"]

    def test_answer_is_committed_with_the_step(
        self, app: Celery, worker: Worker, shop: Shop, parcels: Parcels, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever dies, or has no broker, after the commit has answered: a second run would find nothing to return."""

        def away(*_: object) -> None:
            raise PublishError("away", connection=True)

        sent = ask(shop, worker, parcels.weigh)
        with monkeypatch.context() as patched:
            patched.setattr(runtime_of(app).publisher, "publish", away)
            worker.one()
        assert worker.waiting() == []
        (row,) = shop.rows()
        assert (row.task, row.message_id) == ("order.paid", derived_id(sent.id, "answer"))
        shop.fire(row)
        worker.run()

        assert shop.seen() == ["paid 5 kg"]

    def test_step_that_is_delivered_again(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        sent = ask(shop, worker, parcels.weigh)
        worker.run()
        worker.deliver_again(sent)

        assert worker.waiting() == []
        assert (shop.seen(), parcels.saga.find("1").count) == (["paid 5 kg"], 2)

    def test_conflict_answers_once(self, app: Celery, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.weigh)
        parcels.weigh_does = lambda parcel: f"{parcel.count}"
        interposed(app).once_before("update", lambda: parcels.pack("1"))
        worker.run()

        assert shop.seen() == ["paid 3"]

    def test_journal_says_what_was_answered(self, app: Celery, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        sent = ask(shop, worker, parcels.weigh)
        worker.run()

        entry = backend_of(app).journal.history(["parcel"], "1", 10)[-1]
        assert json.loads(entry.detail) == {"sent": [{"task": "order.paid", "id": derived_id(sent.id, "answer")}]}

    def test_link_of_ones_own_stays(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        shop.place(worker, lambda order: order.send(parcels.weigh.s("1").set(link=shop.ship.s()), then="paid"))
        worker.run()

        assert shop.ran == [["ship", "5 kg"]]
        assert shop.seen() == ["paid 5 kg"]

    def test_last_of_a_chain(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        shop.work = lambda task: "1"
        shop.place(worker, lambda order: order.send(chain(shop.charge.s(), parcels.weigh.s()), then="paid"))
        worker.run()

        assert shop.seen() == ["paid 5 kg"]

    def test_within_a_chain(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        shop.place(worker, lambda order: order.send(chain(parcels.weigh.s("1"), shop.ship.s()), then="paid", otherwise="unpaid"))
        worker.run()

        assert shop.seen() == ["paid shipped 5 kg"]

    def test_answer_that_cannot_be_sent(self, app: Celery, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        """Nothing of the step is committed."""
        parcels.weigh_does = lambda parcel: object()
        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.failure().error == "InvalidMessage"
        assert "the answer, a object, cannot be encoded" in shop.failure().text
        assert parcels.saga.find("1").count == 1

    def test_answer_that_would_lose_fields(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.weigh_does = lambda parcel: Sealed(inner=Labelled(kg=Decimal(5), label="x"))
        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.failure().error == "InvalidMessage"
        assert "inner: a Labelled would arrive as Packed, without label" in shop.failure().text


class TestMissing:
    """There is no instance to ask."""

    def test_ignored(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.seen() == ["paid None"]

    def test_refused(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.weigh_known)
        worker.run()

        assert shop.failure().error == "SagaNotFound"

    def test_function_for_it_answers(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        @parcels.weigh.if_missing
        def unknown(missing: Missing, parcel_id: str) -> str:
            return f"no parcel {parcel_id}"

        ask(shop, worker, parcels.weigh)
        worker.run()

        assert shop.seen() == ["paid no parcel 1"]


class TestCorrelation:
    """Both sagas find each other by what their messages bear."""

    def test_there_and_back_without_a_key(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        """The answer leads the order to the parcel, which it may ask about itself."""

        @shop.saga.handles
        def packed(order: Any, answer: str) -> None:
            order.send(parcels.lost.s(), then="paid")

        parcels.pack_does = lambda parcel: parcel.reply("packed")
        parcels.weigh_does = lambda parcel: f"found {parcel.parcel_id}"
        for key in ("1", "2"):
            shop.place(worker, lambda order, key=key: order.send(parcels.pack.s(key), then=packed), f"order {key}")
        worker.run()

        assert [shop.seen("order 1"), shop.seen("order 2")] == [["paid found 1"], ["paid found 2"]]

    def test_answer_bears_both(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        parcels.pack_does = lambda parcel: parcel.reply("packed")
        ask(shop, worker, parcels.pack)
        worker.one()

        answer = only(worker)
        assert answer.headers[CAUSATION] == {"order": shop.record().id, "parcel": parcels.saga.find("1").saga.id}

    def test_instance_that_asked_has_ended(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.pack)
        worker.run()
        shop.saga.end("42")
        shop.place(worker, lambda order: None)
        parcels.weigh_does = lambda parcel: parcel.reply("too late")
        parcels.weigh.delay("1")
        worker.run()

        assert {done.fate for done in worker.done} == {"acked"}
        assert shop.seen() == []


class Packed(Message):
    """An answer that is a model."""

    kg: Decimal


class Labelled(Packed):
    """One that has more."""

    label: str


class Sealed(Message):
    """One that holds another."""

    inner: Packed


class TestValue:
    """What may be answered."""

    @pytest.mark.parametrize(
        ("value", "got"),
        [(None, None), (5, 5), (Decimal("1.50"), "1.50"), ({1, 2}, [1, 2]), (Packed(kg=Decimal(5)), {"kg": "5"})],
        ids=repr,
    )
    def test_is_encoded(self, worker: Worker, shop: Shop, parcels: Parcels, value: Any, got: Any) -> None:
        answers = []

        @shop.saga.handles
        def came(order: Any, answer: Any) -> None:
            answers.append(answer)

        parcels.pack_does = lambda parcel: parcel.reply(value)
        ask(shop, worker, parcels.pack, then=came)
        worker.run()

        assert answers == [got]

    @pytest.mark.parametrize(
        "value", [object(), SecretStr("x"), {"a": SecretStr("x")}, "x" * 2_000_000], ids=lambda v: repr(v)[:20]
    )
    def test_is_refused(self, worker: Worker, shop: Shop, parcels: Parcels, value: Any) -> None:
        errors: list[Exception] = []

        def answer(parcel: Any) -> None:
            try:
                parcel.reply(value)
            except InvalidMessage as exc:
                errors.append(exc)
                raise

        parcels.pack_does = answer
        ask(shop, worker, parcels.pack)
        worker.run()

        assert len(errors) == 1
        assert shop.seen() == ["unpaid error"]

    @pytest.mark.parametrize("in_list", [False, True])
    def test_that_would_lose_fields(self, worker: Worker, shop: Shop, parcels: Parcels, in_list: bool) -> None:
        """What it holds of a subclass is not left out in silence, whoever takes it."""
        answer = Sealed(inner=Labelled(kg=Decimal(5), label="x"))
        errors: list[str] = []

        def reply(parcel: Any) -> None:
            with pytest.raises(InvalidMessage) as caught:
                parcel.reply([answer] if in_list else answer)
            errors.append(str(caught.value))
            parcel.reply([answer.inner])

        parcels.pack_does = reply
        got: list[Any] = []

        @shop.saga.handles
        def came(order: Any, answer: Any) -> None:
            got.append(answer)

        ask(shop, worker, parcels.pack, then=came)
        worker.run()

        assert f"{'0.' * in_list}inner: a Labelled would arrive as Packed, without label" in errors[0]
        assert got == [[{"kg": "5", "label": "x"}]]

    def test_outside_of_a_step(self, worker: Worker, shop: Shop, parcels: Parcels) -> None:
        ask(shop, worker, parcels.pack)
        worker.run()

        with pytest.raises(MisuseError):
            parcels.saga.find("1").reply("x")


def test_address_that_newer_code_has_noted(
    app: Celery, worker: Worker, shop: Shop, parcels: Parcels, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays, for newer code to answer."""
    said = []
    ask(shop, worker, parcels.pack)
    worker.run()
    record = backend_of(app).sagas.find(Lookup(("parcel",), KEY, "1")).record
    assert record is not None
    newer = {**json.loads(record.pending)["requester"], "then": "in another form"}
    pending = json.dumps({"format": 1, "requester": newer})
    change = Change(("parcel",), record.schema_version, record.data, pending)
    backend_of(app).sagas.update(record, change, effects(record))
    parcels.weigh_does = lambda parcel: said.append(parcel.reply("x"))
    parcels.weigh.delay("1")
    worker.run()

    record = backend_of(app).sagas.find(Lookup(("parcel",), KEY, "1")).record
    assert record is not None
    assert (said, read_pending(record.pending).requester) == ([False], newer)
    assert "its return address cannot be read" in caplog.text
