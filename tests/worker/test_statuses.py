"""Messages that come in another status, on every store: each kind of message, by each policy, and what follows it."""

import json
from typing import Any

import pytest
from celery import Celery, chain

from celery_sagas import Saga, clock, signals
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.errors import TooManyDeferred
from celery_sagas.worker.headers import CAUSATION, DEFERRED_SINCE, MESSAGE_ID, REDELIVERIES
from celery_sagas.worker.operators import discard_dead_letter, retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.parcels import HOUR, NOTED, Parcels, app, define
from tests.worker.requests.trips import Trips, held_back, hours_ago, on_every_store

__all__ = ["app", "stored_app", "url"]

pytestmark = on_every_store

every_message = pytest.mark.parametrize("what", NOTED)
awaited_message = pytest.mark.parametrize("what", [what for what in NOTED if what not in ("message", "starter")])


def in_journal(parcels: Parcels) -> list[str]:
    """Return the outcomes in the journal, without those of the steps that run in each status."""
    return [entry.outcome for entry in parcels.entries if entry.step != "parcel.do"]


class TestRaise:
    @every_message
    def test_fails_and_can_be_retried(self, app: Celery, worker: Worker, what: str) -> None:
        parcels = define(app, "raise")
        parcels.bring(worker, what)
        (letter,) = parcels.dead
        assert (letter.error, letter.key, parcels.seen) == ("WrongStatus", "1", [])
        assert "is 'packed', and" in letter.text

        parcels.become(worker, "sent")
        worker.run()
        assert retry_dead_letter(runtime_of(app), letter).id
        worker.run()
        assert (parcels.seen, parcels.dead) == ([NOTED[what]], [])

    @awaited_message
    def test_is_discarded(self, app: Celery, worker: Worker, what: str) -> None:
        parcels = define(app, "raise")
        parcels.bring(worker, what)
        assert parcels.is_awaited()

        discard_dead_letter(runtime_of(app), parcels.dead[0])
        assert (parcels.is_awaited(), parcels.dead) == (what == "series", [])


class TestIgnore:
    @every_message
    def test_is_ignored_visibly(self, app: Celery, worker: Worker, what: str, caplog: pytest.LogCaptureFixture) -> None:
        heard: list[Outcome] = []

        def hear(outcome: Outcome, **_: object) -> None:
            heard.append(outcome)

        parcels = define(app, "ignore")
        signals.step_ignored.connect(hear)
        caplog.set_level("INFO", "celery_sagas")
        parcels.bring(worker, what)
        parcels.become(worker, "sent")
        worker.run()

        assert (parcels.seen, parcels.dead, parcels.is_awaited()) == ([], [], what == "series")
        assert in_journal(parcels) == ["started", "ignored"]
        assert [(outcome.reason, outcome.key) for outcome in heard] == [("status", "1")]
        assert "ignored: parcel '1' (status)" in caplog.text
        parcels.replays()


class TestDefer:
    @every_message
    def test_is_handled_once_its_step_runs(self, app: Celery, worker: Worker, what: str) -> None:
        parcels = define(app, "defer")
        parcels.bring(worker, what)
        assert len(parcels.waiting) == 1
        assert (parcels.seen, parcels.dead) == ([], [])
        assert parcels.is_awaited() == (what not in ("message", "starter"))

        parcels.become(worker, "lost")
        assert worker.run() == []
        parcels.become(worker, "sent")
        (released,) = worker.run()
        worker.deliver_again(released)

        assert (parcels.seen, parcels.waiting) == ([NOTED[what]], [])
        assert in_journal(parcels) == ["started", "deferred", "handled"]
        assert backend_of(app).outbox.count() == (what in ("series",))
        parcels.replays()

    @every_message
    def test_repeat_while_it_waits(self, app: Celery, worker: Worker, what: str) -> None:
        parcels = define(app, "defer")
        parcels.bring(worker, what)
        version = parcels.parcel.saga.version
        last = next(each for each in reversed(worker.done) if each.task == parcels.waiting[0])
        worker.deliver_again(last)

        assert (len(parcels.waiting), parcels.parcel.saga.version) == (1, version)

    @every_message
    def test_waits_for_as_long_as_it_may(self, app: Celery, worker: Worker, what: str) -> None:
        parcels = define(app, "defer", defer_for=HOUR)
        with hours_ago():
            parcels.bring(worker, what)
        assert len(parcels.waiting) == 1

        assert parcels.relay("scheduled") == 1
        worker.run()
        (letter,) = parcels.dead
        assert (letter.error, parcels.waiting, parcels.seen) == ("WrongStatus", [], [])
        assert "The message was deferred for 3600 s." in letter.text
        parcels.become(worker, "sent")
        retry_dead_letter(runtime_of(app), letter)
        worker.run()
        assert parcels.seen == [NOTED[what]]
        parcels.replays()

    def test_instance_that_completes(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer", defer_for=HOUR)
        for what in ("answer", "timeout", "message"):
            parcels.bring(worker, what)
        assert len(parcels.waiting) == 3
        parcels.do(worker, lambda parcel: parcel.complete())
        released = worker.run()

        assert [each.task for each in released] == ["parcel.came", "parcel.remind", "parcel.scan"]
        assert (parcels.saga.find("1"), parcels.dead, backend_of(app).outbox.count()) == (None, [], 0)
        assert in_journal(parcels)[-1] == "ignored"

    def test_order_is_that_of_arrival(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer")
        for n in (3, 1, 2):
            parcels.saga.scan.delay("1", n=n)
        worker.run()
        parcels.become(worker, "sent")
        worker.run()
        assert parcels.seen == ["scanned 3", "scanned 1", "scanned 2"]

    def test_more_than_can_wait(
        self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """They are redelivered; the time that they may wait counts from their first arrival."""
        monkeypatch.setattr("celery_sagas.engine.deferring.MOST", 1)
        parcels = define(app, "defer", defer_for=HOUR)
        for n in (1, 2):
            parcels.saga.scan.delay("1", n=n)
        with hours_ago(0.5):
            worker.one()
            worker.one()
        (again,) = worker.waiting()
        assert (again.kwargs, again.headers[REDELIVERIES], len(parcels.waiting)) == ({"n": 2}, 1, 1)
        since = again.headers[DEFERRED_SINCE]
        assert "cannot be deferred with parcel '1': 1 messages wait with it, and no more can" in caplog.text

        worker.one()
        (again,) = worker.waiting()
        assert (again.headers[REDELIVERIES], again.headers[DEFERRED_SINCE]) == (2, since)
        with clock.replaced_by(lambda: since / 1000 + 3600):
            worker.one()
        assert [letter.error for letter in parcels.dead] == ["WrongStatus"]

    def test_gather_whose_time_ends_meanwhile(self, app: Celery, worker: Worker) -> None:
        """All its members have answered in time."""
        parcels = define(app, "defer")
        tasks = [parcels.quote.s(1), parcels.quote.s(2)]
        with hours_ago():
            parcels.do(worker, lambda parcel: parcel.gather(tasks, then="gathered", otherwise="too_few", within=60))
        for held in held_back(worker):
            Trips(app).send_again(held)
        worker.run()
        assert parcels.waiting == ["parcel.gathered"]
        parcels.relay("deadline")
        worker.run()

        parcels.become(worker, "sent")
        worker.run()
        assert (parcels.seen, parcels.dead) == (["gathered 2"], [])


class TestWhatFollows:
    """It follows when the message is handled, and not before."""

    def test_link(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer")
        parcels.saga.scan.apply_async(("1",), link=parcels.noted.s())
        worker.run()
        assert parcels.notes == []
        parcels.become(worker, "sent")
        worker.run()
        assert parcels.notes == ["scan 1"]

    def test_chain(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer")
        chain(parcels.quote.s("x"), parcels.saga.scan.si("1"), parcels.noted.s(), parcels.noted.s()).apply_async()
        worker.run()
        assert parcels.notes == []
        parcels.become(worker, "sent")
        worker.run()
        assert parcels.notes == ["scan 1", "scan 1"]

    @pytest.mark.parametrize(("if_not", "answer"), [("defer", "scan 1"), ("ignore", None)])
    def test_answer_to_a_saga_that_asks(self, app: Celery, worker: Worker, if_not: str, answer: str | None) -> None:
        parcels = define(app, if_not)
        shop = asking(parcels)
        shop.ask("s1")
        worker.run()
        assert shop.find("s1").got == ([] if if_not == "defer" else [answer])
        parcels.become(worker, "sent")
        worker.run()
        assert shop.find("s1").got == [answer]

    def test_failure_for_a_saga_that_asks(self, app: Celery, worker: Worker) -> None:
        """Once the message has waited for as long as it may."""
        parcels = define(app, "defer", defer_for=HOUR)
        shop = asking(parcels)
        with hours_ago():
            shop.ask("s1")
            worker.run()
        parcels.relay("scheduled")
        worker.run()
        assert shop.find("s1").got == ["error WrongStatus"]


def asking(parcels: Parcels) -> Any:
    """Return a saga that asks a parcel."""

    class Shop(Saga, correlate_by="shop_id"):
        shop_id: str
        got: list[Any] = []

    @Shop.starts
    def ask(shop: Shop, shop_id: str) -> None:
        shop.send(parcels.saga.scan.si("1"), then="answered", otherwise="refused")

    @Shop.handles
    def answered(shop: Shop, answer: Any) -> None:
        shop.got.append(answer)

    @Shop.handles
    def refused(shop: Shop, failure: Any) -> None:
        shop.got.append(f"{failure['kind']} {failure['error']}")

    Shop.ask = ask  # type: ignore[attr-defined]
    return Shop


class TestMessage:
    """It comes again as it was sent."""

    def test_id_of_its_producer(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer")
        options: dict[str, Any] = {"headers": {MESSAGE_ID: "order-7", "tenant": "t"}, "priority": 3, "expires": 3600}
        parcels.saga.scan.apply_async(("1",), task_id="t1", **options)
        (sent,) = worker.waiting()
        worker.run()
        assert [message.id for message in parcels.parcel.saga.deferred] == ["order-7"]
        parcels.saga.scan.apply_async(("1",), task_id="t2", **options)  # it is repeated under another task id
        worker.run()
        parcels.become(worker, "sent")

        (again,) = worker.waiting()
        assert (again.id, again.headers["tenant"], again.headers["expires"]) == ("t1", "t", sent.headers["expires"])
        worker.run()
        assert parcels.seen == ["scanned 1"]
        assert [entry.message_id for entry in parcels.entries if entry.step == "parcel.scan"][-1] == "order-7"

    def test_call_inside_a_task(self, app: Celery, worker: Worker) -> None:
        """The message belongs to the same instances, whichever message releases it."""
        parcels = define(app, "defer")
        belonging: list[Any] = []

        @parcels.saga.handles(when="sent", if_not="defer")
        def belongs(parcel: Any) -> None:
            parcel.seen.append("belongs")

        @app.task(name="calls")
        def calls() -> None:
            belonging.append(belongs())

        parcels.do(worker, lambda parcel: parcel.send(calls.si()))
        worker.run()
        assert (belonging, parcels.waiting) == ([None], ["parcel.belongs"])
        headers = json.loads(parcels.pending.deferred[0].payload)["options"]["headers"]
        assert headers[CAUSATION] == {"parcel": parcels.parcel.saga.id}  # a relay may publish it
        parcels.become(worker, "sent")
        worker.run()
        assert (parcels.seen, parcels.dead) == (["belongs"], [])

    def test_belongs_to_no_instance_of_what_releases_it(self, app: Celery, worker: Worker) -> None:
        """It comes from outside: what it causes must not find an instance by chance."""
        parcels = define(app, "defer")
        shop = asking(parcels)

        @shop.handles
        def hear(shop: Any) -> None:
            shop.got.append("heard")

        @parcels.saga.handles(when="sent", if_not="defer")
        def tell(parcel: Any, number: str) -> None:
            parcel.send(hear.si())

        @shop.handles
        def open_parcel(shop: Any, shop_id: str) -> None:
            shop.send(parcels.saga.do.si("1", 0))

        tell.delay("1")
        worker.run()
        parcels.acts.append(lambda parcel: setattr(parcel, "status", "sent"))
        shop.ask("s1")
        open_parcel("s1")
        worker.run()
        assert (parcels.parcel.status, [letter.error for letter in parcels.dead]) == ("sent", ["CorrelationError"])

    def test_direct_call(self, app: Celery, worker: Worker) -> None:
        parcels = define(app, "defer")
        assert parcels.saga.scan("1") is None
        assert parcels.waiting == ["parcel.scan"]
        parcels.become(worker, "sent")
        worker.run()
        assert parcels.seen == ["scanned 1"]

    def test_direct_call_when_no_more_can_wait(self, app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_sagas.engine.deferring.MOST", 0)
        parcels = define(app, "defer")
        with pytest.raises(TooManyDeferred):
            parcels.saga.scan("1")
