"""A message that comes before its instance: it is published again, then waits in the outbox, and in the end it fails."""

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_sagas import Missing, Saga, clock
from celery_sagas.errors import SagaNotFound, StoreUnavailable
from celery_sagas.stores.records import KEY, Handling, Lookup, Outgoing
from celery_sagas.worker.failures import deferral
from celery_sagas.worker.headers import DEFERRED_SINCE, LOOKS, REDELIVERIES
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, Worker, backend_of, interposed
from tests.worker.moments import Moment

AWAY = StoreUnavailable("sqlite://", "it is away")
MINUTE = 60.0


class Time:
    """The time that messages see."""

    now_s = 1_800_000_000.0

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


@pytest.fixture
def time() -> Iterator[Time]:
    """Virtual time."""
    time = Time()
    with clock.replaced_by(lambda: time.now_s):
        yield time


@pytest.fixture
def worker(app: Celery) -> Worker:
    """A worker that runs each message as a task."""
    return Worker(app)


@pytest.fixture
def saga(app: Celery) -> Any:
    """A saga, one of whose messages may come early."""

    class Order(Saga, correlate_by="order_id", also_by="tracking"):
        order_id: str
        tracking: str | None = None
        paid: int = 0

    @Order.starts
    def place(order: Order, order_id: str, tracking: str | None = None) -> None:
        order.tracking = tracking

    @Order.handles(if_missing="defer", defer_for=MINUTE)
    def pay(order: Order, order_id: str) -> None:
        order.paid += 1

    @Order.handles(by="tracking", if_missing="defer", defer_for=MINUTE)
    def deliver(order: Order, tracking: str) -> None:
        order.complete()

    Order.place, Order.pay, Order.deliver = place, pay, deliver  # type: ignore[attr-defined]
    return Order


def rows(app: Celery) -> list[Outgoing]:
    """Return what waits in the outbox, whenever it is due."""
    return [row.message for row in backend_of(app).outbox._state.outbox._by_id.values()]  # type: ignore[attr-defined]


def outcome_of(app: Celery, step: str, id: str) -> tuple[str, str]:
    """Return what the journal says of a message: the outcome, and the reason."""
    entry = backend_of(app).sagas.find(Lookup(("parcel",), KEY, "none"), Handling((step,), id)).handled
    assert entry is not None, "it is not in the journal"
    return entry.outcome, json.loads(entry.detail)["reason"]


def due_at(message: Delivered) -> float:
    """Return when a message is due, in milliseconds since the epoch."""
    return datetime.fromisoformat(message.headers["eta"]).timestamp() * 1000


def test_comes_again_under_its_id(app: Celery, worker: Worker, saga: Any) -> None:
    saga.pay.apply_async(("42",), task_id="m1", headers={"tenant": "t"})
    moment = Moment()

    delivered = worker.one()
    (again,) = worker.waiting()

    assert isinstance(delivered.error, Ignore)
    assert (again.id, again.headers["retries"], again.headers["tenant"], again.headers[LOOKS]) == ("m1", 0, "t", 1)
    assert moment.is_before(due_at(again), 0.1)
    assert backend_of(app).journal.history(["order"], "42", 10) == []


def test_is_handled_when_the_instance_is_there(worker: Worker, saga: Any) -> None:
    saga.pay.delay("42")
    worker.one()
    saga.place.delay("42")
    worker.run()

    assert saga.find("42").paid == 1


def test_by_an_alternate_key(worker: Worker, saga: Any) -> None:
    saga.deliver.delay("T1")
    worker.one()
    saga.place.delay("42", "T1")
    worker.run()

    assert saga.outcome("42").step == "order.deliver"


def test_pauses_are_twice_as_long_each_time(worker: Worker, saga: Any, time: Time) -> None:
    saga.pay.delay("42")
    for pause_s in (0.1, 0.2, 0.4, 0.8):
        moment = Moment()
        worker.one()
        (again,) = worker.waiting()
        assert again.headers[DEFERRED_SINCE] == Time.now_s * 1000
        assert moment.is_before(due_at(again), pause_s)
        time.pass_by(pause_s)


def test_waits_in_the_outbox_after_that(app: Celery, worker: Worker, saga: Any, time: Time) -> None:
    saga.pay.apply_async(("42",), task_id="m1")
    worker.one()
    time.pass_by(30)
    assert isinstance(worker.one().error, Ignore)

    (row,) = rows(app)
    sent = json.loads(row.payload)["options"]
    (entry,) = backend_of(app).journal.history(["order"], "42", 10)

    assert worker.waiting() == []
    assert (row.message_id, row.task, row.due_at) == ("m1", "order.pay", (Time.now_s + 40) * 1000)
    assert (sent["task_id"], sent["headers"][DEFERRED_SINCE], sent["headers"][LOOKS]) == ("m1", Time.now_s * 1000, 2)
    assert (entry.outcome, entry.instance_id) == ("deferred", "")
    assert entry.message_id != "m1"  # the message itself will be handled


def test_delivered_again_it_waits_in_the_outbox_once(app: Celery, worker: Worker, saga: Any, time: Time) -> None:
    saga.pay.delay("42")
    worker.one()
    time.pass_by(30)
    parked = worker.one()
    worker.deliver_again(parked)

    assert len(rows(app)) == 1


def test_fails_in_the_end(worker: Worker, saga: Any, time: Time) -> None:
    saga.pay.delay("42")
    worker.one()
    time.pass_by(MINUTE)

    failed = worker.one()

    assert isinstance(failed.error, SagaNotFound)
    assert (failed.fate, worker.waiting()) == ("acked", [])


def test_its_dead_letter_has_its_time_again(app: Celery, worker: Worker, saga: Any, time: Time) -> None:
    saga.pay.delay("42")
    worker.one()
    time.pass_by(MINUTE)
    worker.one()

    (letter,) = backend_of(app).dead.list(10)

    assert letter.error == "SagaNotFound"
    assert not {DEFERRED_SINCE, LOOKS} & json.loads(letter.payload)["options"]["headers"].keys()


def test_late_message_is_ignored(app: Celery, worker: Worker, saga: Any) -> None:
    saga.place("42", "T1")
    saga.deliver("T1")
    saga.pay.delay("42")
    worker.run()

    assert [entry.outcome for entry in backend_of(app).journal.history(["order"], "42", 10)] == [
        "started",
        "completed",
        "ignored",
    ]


@pytest.mark.parametrize("since", ["x", None, -1, 1, True, 10**30, 1.5, {}])
def test_malformed_time_is_none(worker: Worker, saga: Any, time: Time, since: object) -> None:
    saga.pay.apply_async(("42",), headers={DEFERRED_SINCE: since, LOOKS: "y"})
    worker.one()

    (again,) = worker.waiting()
    assert (again.headers[DEFERRED_SINCE], again.headers[LOOKS]) == (Time.now_s * 1000, 1)


@pytest.mark.parametrize("waited_s", [0, 30])
def test_store_that_is_away(app: Celery, worker: Worker, saga: Any, time: Time, waited_s: float) -> None:
    saga.pay.apply_async(("42",), headers={DEFERRED_SINCE: int(Time.now_s * 1000)})
    time.pass_by(waited_s)
    interposed(app).once_before("find" if not waited_s else "record", lambda: (_ for _ in ()).throw(AWAY))

    assert isinstance(worker.one().error, Ignore)
    (again,) = worker.waiting()
    assert (again.headers[REDELIVERIES], again.headers.get(LOOKS, 0)) == (1, 0)


def test_direct_call_raises(saga: Any) -> None:
    with pytest.raises(SagaNotFound):
        saga.pay("42")


def test_other_saga_that_a_handler_misses(app: Celery, worker: Worker, saga: Any) -> None:
    """It is the handler's error, whatever the policy of its step."""

    @saga.handles(if_missing="defer", defer_for=MINUTE)
    def look(order: Any, order_id: str) -> None:
        raise SagaNotFound("till", "shop", "1")

    saga.place("42")
    look.delay("42")

    assert isinstance(worker.one().error, SagaNotFound)
    assert worker.waiting() == []


class TestOtherPolicies:
    def test_raise_fails_at_once(self, worker: Worker, saga: Any) -> None:
        @saga.handles(if_missing="raise")
        def cancel(order: Any, order_id: str) -> None: ...

        cancel.delay("42")

        assert isinstance(worker.one().error, SagaNotFound)
        assert worker.waiting() == []

    def test_raise_with_autoretry_is_celerys_retry(self, worker: Worker, saga: Any) -> None:
        @saga.handles(if_missing="raise", autoretry_for=(SagaNotFound,), max_retries=1, default_retry_delay=0)
        def cancel(order: Any, order_id: str) -> None: ...

        cancel.delay("42")

        assert [message.headers["retries"] for message in worker.run()] == [0, 1]

    def test_function_for_what_is_missing_through_a_worker(self, app: Celery, worker: Worker, saga: Any) -> None:
        @app.task(name="noted")
        def noted(text: str) -> None: ...

        @saga.handles(bind=True)
        def cancel(self: Any, order: Any, order_id: str) -> None: ...

        @cancel.if_missing
        def refuse(missing: Missing, order_id: str) -> None:
            missing.send(noted.si(f"no {missing.saga} {order_id}"))

        cancel.delay("42")
        worker.run()

        assert worker.done[-1].args == ["no order 42"]


class TestPause:
    def test_ends_when_the_message_has_waited_for_15_seconds(self, app: Celery, worker: Worker, saga: Any, time: Time) -> None:
        """It is not kept in a worker's memory for longer."""
        saga.pay.delay("42")
        for pause_s in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 2.3):
            moment = Moment()
            worker.one()
            (again,) = worker.waiting()
            assert moment.is_before(due_at(again), pause_s)
            time.pass_by(pause_s)
        worker.one()
        assert (worker.waiting(), len(rows(app))) == ([], 1)

    @pytest.mark.parametrize(("visibility_s", "pause_s"), [(3.0, 1.0), (3600.0, 3.2)])
    def test_is_shorter_than_the_broker_s_patience(
        self, app: Celery, worker: Worker, saga: Any, monkeypatch: pytest.MonkeyPatch, visibility_s: float, pause_s: float
    ) -> None:
        """Else the broker delivers the message again while a worker keeps it: two of them would look from then on."""
        monkeypatch.setattr(deferral, "longest_redelivery_s", lambda app: visibility_s)
        saga.pay.apply_async(("42",), headers={LOOKS: 5})
        moment = Moment()
        worker.one()

        (again,) = worker.waiting()
        assert moment.is_before(due_at(again), pause_s)


class TestMissingAgain:
    """A message that has looked for its instance, has waited with it, and looks again."""

    @pytest.fixture
    def parcel(self, app: Celery) -> Any:
        class Parcel(Saga, correlate_by="parcel_id", also_by="tracking", status_by="status"):
            parcel_id: str
            tracking: str | None = None
            status: Literal["new", "sent"] = "new"

        @Parcel.starts
        def pack(parcel: Parcel, parcel_id: str, tracking: str) -> None:
            parcel.tracking = tracking

        @Parcel.handles
        def lose(parcel: Parcel, parcel_id: str) -> None:
            parcel.complete()

        @Parcel.handles(by="tracking", when="sent", if_not="defer", if_missing="defer", defer_for=3600)
        def deliver(parcel: Parcel, tracking: str) -> None: ...

        Parcel.pack, Parcel.lose, Parcel.deliver = pack, lose, deliver  # type: ignore[attr-defined]
        return Parcel

    def sweep(self, app: Celery, worker: Worker) -> None:
        """Have the message that waits in the outbox come."""
        (row,) = rows(app)
        backend = backend_of(app)
        backend.outbox._state.outbox._by_id.clear()  # type: ignore[attr-defined]
        runtime_of(app).publisher.publish(row)
        worker.one()

    def test_is_late_once_its_instance_is_gone(self, app: Celery, worker: Worker, parcel: Any, time: Time) -> None:
        """By an alternate key, too, by which the journal knows nothing."""
        parcel.deliver.apply_async(("T1",), task_id="m1", headers={DEFERRED_SINCE: int(Time.now_s * 1000)})
        time.pass_by(20)
        worker.one()
        for _ in range(3):
            self.sweep(app, worker)
        parcel.pack("p1", "T1")
        self.sweep(app, worker)
        assert [waiting.id for waiting in parcel.find("p1").saga.deferred] == ["m1"]
        assert rows(app)[0].task == "parcel.(deferred)"
        parcel.lose("p1")
        delivered = worker.one()

        assert (delivered.id, delivered.error, rows(app), worker.waiting()) == ("m1", None, [], [])
        assert outcome_of(app, "parcel.deliver", "m1") == ("ignored", "completed")

    def test_time_counts_from_the_first_arrival(self, app: Celery, worker: Worker, parcel: Any, time: Time) -> None:
        parcel.deliver.apply_async(("T1",), headers={DEFERRED_SINCE: int(Time.now_s * 1000)})
        time.pass_by(20)
        worker.one()
        parcel.pack("p1", "T1")
        self.sweep(app, worker)

        (waiting,) = parcel.find("p1").saga.deferred
        assert waiting.since.timestamp() == Time.now_s
        assert [row.due_at for row in rows(app)] == [int((Time.now_s + 3600) * 1000)]
