"""A step, or a saga, that an operator holds: its messages wait, and nothing is handled for it, whatever the store."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, shared_task
from celery.exceptions import Ignore, Reject

from celery_sagas import Saga
from celery_sagas.core.registry import registry
from celery_sagas.errors import PublishError, StepHeld, StoreUnavailable
from celery_sagas.operate import Operator
from celery_sagas.stores.memory.switches import MemorySwitches
from celery_sagas.worker.headers import REDELIVERIES
from celery_sagas.worker.runtime import runtime_of
from tests.apps import AgainWorker, Delivered, NewApp, Worker, backend_of
from tests.every_store import stored_app, url

__all__ = ["stored_app", "url"]

WHY = "the bank is closed"


@shared_task
def charge(order_id: str) -> str:
    return "charged"


@pytest.fixture
def shop(definitions: None) -> Any:
    """Orders that are placed, paid for by a request, and remembered by a timeout; and parcels."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: list[str] = []

    @Order.starts(autoretry_for=(Exception,))
    def place(order: Order, order_id: str) -> None:
        order.seen.append("placed")

    @Order.handles
    def pay(order: Order, order_id: str) -> None:
        order.seen.append("paying")
        order.send(charge.s(order_id), then=paid)
        order.schedule(remind, after=0)

    @Order.handles
    def paid(order: Order, answer: str) -> None:
        order.seen.append(answer)

    @Order.handles
    def remind(order: Order) -> None:
        order.seen.append("reminded")

    class Parcel(Saga, correlate_by="number"):
        number: str

    @Parcel.starts
    def pack(parcel: Parcel, number: str) -> None: ...

    return SimpleNamespace(Order=Order, Parcel=Parcel, place=place, pay=pay, paid=paid, remind=remind, pack=pack)


@pytest.fixture
def ann(app: Celery) -> Operator:
    """An operator."""
    return Operator(app, "ann")


def names(messages: list[Delivered]) -> list[str]:
    """Return the tasks of messages, in any order."""
    return sorted(message.task for message in messages)


class TestEachStore:
    """On every store, as a task and in a batch."""

    @pytest.fixture
    def app(self, stored_app: Celery) -> Celery:
        """An app on each store."""
        return stored_app

    def test_messages_of_a_held_step_wait(self, app: Celery, worker: Worker, shop: Any, ann: Operator) -> None:
        ann.hold(shop.place, WHY)
        shop.place.apply_async(("42",), task_id="m1", headers={"tenant": "t"}, priority=3)
        shop.pack.delay("7")
        done = [worker.one(), worker.one()]

        assert [(each.fate, type(each.error)) for each in done] == [("acked", Ignore), ("acked", type(None))]
        (again,) = worker.waiting()
        assert (again.id, again.args, again.headers["tenant"], again.headers[REDELIVERIES]) == ("m1", ["42"], "t", 1)
        assert (shop.Order.find("42"), shop.Parcel.find("7") is not None) == (None, True)
        assert backend_of(app).journal.history(["order"], "42", 9) == []
        ann.release(shop.place, "it is open")
        worker.run()
        assert shop.Order.find("42").seen == ["placed"]

    def test_answers_and_timeouts_of_a_held_step_wait(self, app: Celery, worker: Worker, shop: Any, ann: Operator) -> None:
        shop.place("42")
        for step in (shop.paid, shop.remind):
            ann.hold(step, WHY)
        shop.pay.delay("42")
        worker.step()
        worker.step()
        for _ in range(4):
            worker.step()
        assert shop.Order.find("42").seen == ["placed", "paying"]
        assert names(worker.waiting()) == ["order.paid", "order.remind"]
        ann.release(shop.remind, WHY)
        for _ in range(2):
            worker.step()
        assert shop.Order.find("42").seen == ["placed", "paying", "reminded"]
        ann.release(shop.paid, WHY)
        worker.run()
        assert shop.Order.find("42").seen == ["placed", "paying", "reminded", "charged"]

    def test_all_steps_of_a_held_saga_wait(self, app: Celery, worker: Worker, shop: Any, ann: Operator) -> None:
        shop.place("42")
        ann.hold(shop.Order, WHY)
        shop.pay.delay("42")
        shop.place.delay("43")
        shop.pack.delay("7")
        for _ in range(3):
            worker.step()
        assert names(worker.waiting()) == ["order.pay", "order.place"]
        assert shop.Parcel.find("7") is not None
        ann.release(shop.Order, WHY)
        worker.run()
        assert sorted(shop.Order.find("42").seen) == ["charged", "paying", "placed", "reminded"]
        assert shop.Order.find("43").seen == ["placed"]


class TestWhatWaits:
    """How a message waits, and who is told."""

    @pytest.fixture
    def worker(self, app: Celery) -> Worker:
        """A worker that runs each message as a task."""
        return Worker(app)

    def test_log_names_step_actor_and_reason(
        self, worker: Worker, shop: Any, ann: Operator, caplog: pytest.LogCaptureFixture
    ) -> None:
        ann.hold(shop.Order, WHY)
        shop.place.delay("42")
        worker.one()
        (record,) = [each for each in caplog.records if each.name == "celery_sagas" and each.levelno == logging.WARNING]
        assert record.getMessage() == f"messages to order.place wait: 'ann' holds order: {WHY!r}"

    def test_it_is_logged_once_for_many_messages(
        self, worker: Worker, shop: Any, ann: Operator, caplog: pytest.LogCaptureFixture
    ) -> None:
        ann.hold(shop.place, WHY)
        for number in range(5):
            shop.place.delay(str(number))
            worker.one()
        assert caplog.text.count("'ann' holds order.place") == 1

    def test_broker_that_is_away_keeps_the_message(
        self, app: Celery, worker: Worker, shop: Any, ann: Operator, held: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shop.place.delay("42")
        ann.hold(shop.place, WHY)

        def fail(*_: Any) -> None:
            raise PublishError("away", True)

        monkeypatch.setattr(runtime_of(app).publisher, "publish_signature", fail)
        delivered = worker.one()
        assert (type(delivered.error), delivered.fate) == (Reject, "requeued")

    def test_redelivery_is_not_counted(self, app: Celery, shop: Any, ann: Operator) -> None:
        app.conf.saga_max_deliveries = 1
        ann.hold(shop.place, WHY)
        shop.place.apply_async(("42",), task_id="m1")
        for _ in range(3):
            assert isinstance(AgainWorker(app).one().error, Ignore)
        assert backend_of(app).deliveries.count("order.place", "m1") == 1
        assert backend_of(app).dead.list(10) == []

    def test_message_that_does_not_fit_fails_at_once(self, app: Celery, worker: Worker, shop: Any, ann: Operator) -> None:
        """It never will: it is kept as a dead letter, as any such message is."""
        ann.hold(shop.place, WHY)
        app.send_task("order.place", ("42", "more"))
        worker.one()
        assert [each.task for each in backend_of(app).dead.list(10)] == ["order.place"]

    def test_direct_call_raises(self, shop: Any, ann: Operator) -> None:
        ann.hold(shop.place, WHY)
        with pytest.raises(StepHeld, match=rf"^order\.place is held, by 'ann': {WHY!r}\. Nothing was handled\.$"):
            shop.place("42")
        ann.release(shop.place, WHY)
        shop.place("42")
        assert shop.Order.find("42") is not None

    def test_step_that_had_another_name_when_it_was_held(self, worker: Worker, shop: Any, ann: Operator) -> None:
        """Code of both releases has it wait."""
        ann.hold(shop.pack, WHY)
        del registry.steps["parcel.pack"]

        @shop.Parcel.starts(formerly="parcel.pack")
        def wrap(parcel: Any, number: str) -> None: ...

        wrap.delay("7")
        worker.one()
        assert shop.Parcel.find("7") is None
        assert not ann.hold(wrap, WHY).changed
        assert ann.release(wrap, WHY).changed
        worker.run()
        assert shop.Parcel.find("7") is not None


class TestEager:
    """Without a worker there is no message that could wait."""

    @pytest.fixture
    def app(self, new_app: NewApp) -> Celery:
        """An eager app."""
        return new_app(eager=True)

    def test_caller_gets_the_error(self, app: Celery, shop: Any, ann: Operator) -> None:
        ann.hold(shop.pack, WHY)
        with pytest.raises(StepHeld):
            shop.pack.delay("7")
        ann.release(shop.pack, WHY)
        shop.pack.delay("7")
        assert shop.Parcel.find("7") is not None


class TestStoreThatIsAway:
    """While the switches cannot be read, what was read last counts."""

    @pytest.fixture
    def away(self, app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
        """Whether the switches of the app can be read: no, once this list has an element."""
        away, real = list[bool](), MemorySwitches.held

        def held(self: MemorySwitches) -> Any:
            if away:
                raise StoreUnavailable("memory://", "it is away")
            return real(self)

        monkeypatch.setattr(MemorySwitches, "held", held)
        return away

    def test_held_step_stays_held(
        self, app: Celery, shop: Any, ann: Operator, away: list[bool], caplog: pytest.LogCaptureFixture
    ) -> None:
        ann.hold(shop.place, WHY)
        with pytest.raises(StepHeld):
            shop.place("42")
        away.append(True)
        runtime_of(app).switchboard_of(shop.Order.__saga__).look_again()
        with pytest.raises(StepHeld):
            shop.place("42")
        assert "which steps are held cannot be read, 1 were when it was read last" in caplog.text

    def test_others_go_on(self, shop: Any, away: list[bool]) -> None:
        away.append(True)
        shop.place("42")
        assert shop.Order.find("42") is not None
