"""What a step sends to a step of the same worker: handled by the process that has committed it, or published as ever."""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, current_task, signals
from celery.canvas import Signature

from celery_sagas import Saga
from celery_sagas.engine import waves
from celery_sagas.worker.batches.handing_over import queues_of
from celery_sagas.worker.batches.steps import StepBatches, consumer_for, handle_together
from tests.apps import Worker, backend_of
from tests.waiting import DEADLINE_S
from tests.worker.batches.test_steps import message
from tests.worker.consumers import Consumer

Shop = Any


class Delayed(Task):
    """Has messages run in an hour."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        return super().apply_async(*args, **{**options, "countdown": 3600})


@pytest.fixture
def shop(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A saga whose first step sends what a test says."""
    app.conf.saga_hand_over = 10
    monkeypatch.setattr(waves, "BATCH_S", DEADLINE_S)  # however busy the machine is
    seen: list[Any] = []
    shop = SimpleNamespace(app=app, seen=seen, sends=lambda shop, order_id: [shop.ship.si(order_id=order_id)])

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0
        status: str = ""

    class Parcel(Saga, correlate_by="order_id"):
        order_id: str
        count: int = 0

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.total += 1
        for sent in shop.sends(shop, order_id):
            order.send(sent)

    @Order.handles
    def ship(order: Order, order_id: str) -> None:
        order.status = "shipped"
        order.send(pack.si(order_id=order_id))

    @Parcel.starts(bind=True)
    def pack(task: Any, parcel: Parcel, order_id: str) -> None:
        parcel.count += 1
        seen.append(task.request.__dict__.copy())

    @Parcel.starts
    def fail(parcel: Parcel, order_id: str) -> None:
        raise ValueError(order_id)

    @Parcel.starts(time_limit=30)
    def limited(parcel: Parcel, order_id: str) -> None:
        parcel.count += 1

    @Parcel.starts(batch=1)
    def alone(parcel: Parcel, order_id: str) -> None:
        parcel.count += 1

    @Parcel.starts(base=Delayed)
    def delayed(parcel: Parcel, order_id: str) -> None:
        parcel.count += 1

    @Parcel.starts(batch=2)
    def few(parcel: Parcel, order_id: str) -> None:
        parcel.count += 1

    @app.task(name="told")
    def told(order_id: str) -> None:
        """Do nothing."""

    app.finalize()
    for step in (place, ship, pack, fail, limited, alone, few, delayed, told):
        setattr(shop, step.name.rpartition(".")[2], step)
    shop.order, shop.parcel = Order, Parcel
    return shop


def handle(shop: Shop, *numbers: int, queues: tuple[str, ...] | None = None) -> list[str]:
    """Place orders in one batch; return the tasks of the messages that were published."""
    queues = (shop.app.conf.task_default_queue,) if queues is None else queues
    settled = handle_together([message(shop, number) | {"hostname": "w1@host"} for number in numbers or (1,)], queues=queues)
    assert settled.left == []
    return [delivered.task for delivered in Worker(shop.app).waiting()]


def count(shop: Shop, key: str = "1") -> int | None:
    found = shop.parcel.find(key)
    return found and found.count  # type: ignore[no-any-return]


def test_steps_that_follow_are_handled_without_the_broker(shop: Shop) -> None:
    assert handle(shop, 1, 2) == []
    assert [shop.order.find(key).status for key in "12"] == ["shipped", "shipped"]
    assert [count(shop, key) for key in "12"] == [1, 1]
    assert backend_of(shop.app).outbox.claim_due("another", 10, 1) == []


def test_a_plain_task_is_published(shop: Shop) -> None:
    shop.sends = lambda shop, order_id: [shop.told.si(order_id), shop.ship.si(order_id=order_id), shop.told.si(order_id)]
    assert handle(shop) == ["told", "order.ship", "told"]


@pytest.mark.parametrize(
    "sends",
    [
        lambda shop, key: [shop.ship.si(order_id=key).set(queue="elsewhere")],
        lambda shop, key: [shop.ship.si(order_id=key).set(priority=3)],
        lambda shop, key: [shop.ship.si(order_id=key).set(expires=60)],
        lambda shop, key: [shop.ship.si(order_id=key).set(time_limit=60)],
        lambda shop, key: [shop.ship.si(order_id=key).set(link=shop.told.si(key))],
        lambda shop, key: [shop.ship.si(order_id=key).set(ignore_result=False)],
        lambda shop, key: [shop.ship.si(order_id=key) | shop.told.si(key)],
        lambda shop, key: [shop.ship.si(order_id=key).set(countdown=60)],
        lambda shop, key: [shop.limited.si(order_id=key)],
        lambda shop, key: [shop.alone.si(order_id=key)],
    ],
    ids=["queue", "priority", "expires", "limit", "link", "result", "chain", "countdown", "limited", "alone"],
)
def test_a_message_that_is_to_be_treated_in_another_way_is_not_taken(shop: Shop, sends: Callable[..., Any]) -> None:
    shop.sends = sends
    handle(shop)
    assert shop.order.find("1").status == ""
    assert count(shop) is None


def test_a_message_for_a_queue_from_which_the_worker_does_not_consume_is_published(shop: Shop) -> None:
    assert handle(shop, queues=("elsewhere",)) == ["order.ship"]
    shop.app.conf.task_routes = {"parcel.*": {"queue": "parcels"}}
    shop.app.amqp.flush_routes()
    shop.app.amqp.router = shop.app.amqp.Router()
    handle(shop, 2)
    assert shop.order.find("2").status == "shipped"
    assert count(shop, "2") is None


def test_a_message_overtakes_none_of_its_sender_to_the_same_saga(shop: Shop) -> None:
    shop.sends = lambda shop, key: [shop.ship.si(order_id=key), shop.ship.si(order_id=key)]
    assert handle(shop) == ["order.ship", "order.ship"]


def test_a_message_follows_another_to_another_saga(shop: Shop) -> None:
    shop.sends = lambda shop, key: [shop.ship.si(order_id=key), shop.pack.si(order_id=key)]
    assert handle(shop) == ["order.ship"]
    assert count(shop) == 1


def test_a_message_overtakes_none_that_an_earlier_one_of_its_chain_has_sent(shop: Shop) -> None:
    """The first step has sent to the parcel by the broker, and so must the second."""
    shop.sends = lambda shop, key: [shop.pack.si(order_id=key), shop.ship.si(order_id=key)]
    assert handle(shop) == ["parcel.pack", "parcel.pack"]
    assert shop.order.find("1").status == "shipped"


@pytest.mark.parametrize("before", ["celery_sagas.publish", "of.another.app"])
def test_a_message_does_not_overtake_one_whose_receiver_is_not_known(shop: Shop, before: str) -> None:
    event = Signature(before, args=("shop.Placed", {}), app=shop.app)
    shop.sends = lambda shop, key: [event, shop.ship.si(order_id=key)]
    assert handle(shop) == [before, "order.ship"]


def test_a_message_is_published_if_it_goes_through_a_function_of_the_users(shop: Shop) -> None:
    """Which may delay it, or have another task follow it."""

    shop.sends = lambda shop, key: [shop.delayed.si(order_id=key)]
    assert handle(shop) == ["parcel.delayed"]


def test_a_step_with_smaller_batches_has_its_own(shop: Shop) -> None:
    shop.sends = lambda shop, key: [shop.few.si(order_id=key)]
    assert handle(shop, 1, 2) == []
    assert handle(shop, 3, 4, 5) == ["parcel.few"] * 3


@pytest.mark.parametrize("option", [{"priority": 3}, {"serializer": "yaml"}])
def test_a_message_whose_route_says_how_it_is_to_be_treated_is_published(shop: Shop, option: dict[str, Any]) -> None:
    shop.app.conf.task_routes = {"order.ship": option}
    shop.app.amqp.flush_routes()
    shop.app.amqp.router = shop.app.amqp.Router()
    handle(shop)
    assert shop.order.find("1").status == ""


def test_where_messages_are_not_json_none_is_handed_over(shop: Shop) -> None:
    shop.app.conf.task_serializer = "yaml"
    handle(shop)
    assert shop.order.find("1").status == ""


def test_headers_are_those_of_a_message(shop: Shop) -> None:
    """They have passed JSON, and belong to no other message."""
    given = {"seen": ("by", {1: "one"})}
    shop.sends = lambda shop, key: [shop.pack.si(order_id=key).set(headers=given)]
    handle(shop)
    assert shop.seen[0]["seen"] == ["by", {"1": "one"}]


def test_one_that_fails_is_published_and_fails_as_a_task(shop: Shop) -> None:
    shop.sends = lambda shop, key: [shop.fail.si(order_id=key)]
    assert handle(shop) == ["parcel.fail"]
    worker = Worker(shop.app)
    worker.run()
    (letter,) = backend_of(shop.app).dead.list(10)
    assert letter.task == "parcel.fail"


def test_no_more_follow_than_the_setting_says(shop: Shop) -> None:
    shop.app.conf.saga_hand_over = 1
    assert handle(shop) == ["parcel.pack"]
    assert shop.order.find("1").status == "shipped"


def test_its_request_is_the_one_that_it_has_as_a_task(shop: Shop, worker: Worker) -> None:
    """Every part of it, but for what each message, publication, delivery and run has of its own."""
    shop.sends = lambda shop, key: [shop.pack.si(order_id=key)]
    handle(shop, 1)
    handle(shop, 2, queues=())
    worker.run()
    handed_over, delivered = shop.seen
    assert handed_over.keys() ^ delivered.keys() <= {"callbacks", "errbacks", "chain", "chord", "_celery_sagas_batched"}
    different = {name for name in handed_over.keys() & delivered.keys() if handed_over[name] != delivered[name]}
    of_message = {
        "id",
        "root_id",
        "parent_id",
        "correlation_id",
        "kwargs",
        "kwargsrepr",
        "saga_cause",
        "saga_causation",
        "headers",
    }
    assert different - of_message == {"hostname", "properties", "_celery_sagas_session"}
    queue = shop.app.conf.task_default_queue
    assert handed_over["delivery_info"] == {"exchange": "", "routing_key": queue, "priority": 0, "redelivered": False}
    assert handed_over["hostname"] == "w1@host"
    assert handed_over["properties"]["correlation_id"] == handed_over["id"]


class TestSignals:
    """Each message has its own, whoever delivers it."""

    def test_of_celery(self, shop: Shop) -> None:
        seen: list[tuple[str, str]] = []

        def note(sender: Any = None, signal: Any = None, **_: Any) -> None:
            seen.append((signal.name, getattr(sender, "name", sender)))

        named = (signals.before_task_publish, signals.task_prerun, signals.task_postrun, signals.task_success)
        for signal in named:
            signal.connect(note)
        try:
            handle(shop)
        finally:
            for signal in named:
                signal.disconnect(note)
        assert seen == [
            ("task_prerun", "order.place"),
            ("task_postrun", "order.place"),
            ("before_task_publish", "order.ship"),
            ("task_prerun", "order.ship"),
            ("task_postrun", "order.ship"),
            ("before_task_publish", "parcel.pack"),
            ("task_prerun", "parcel.pack"),
            ("task_postrun", "parcel.pack"),
            ("task_success", "order.place"),
            ("task_success", "order.ship"),
            ("task_success", "parcel.pack"),
        ]

    def test_headers_that_a_receiver_adds_arrive(self, shop: Shop) -> None:
        """Such as those of a trace, which belong to the context of the handler that sends."""
        trace: ContextVar[str] = ContextVar("trace", default="none")

        def begin(task: Any = None, **_: Any) -> None:
            trace.set(f"{task.request.get('traced', 'new')} > {task.name}")

        def carry(headers: Any = None, **_: Any) -> None:
            headers["traced"] = trace.get()

        signals.task_prerun.connect(begin)
        signals.before_task_publish.connect(carry)
        try:
            handle(shop)
        finally:
            signals.task_prerun.disconnect(begin)
            signals.before_task_publish.disconnect(carry)
        assert shop.seen[0]["traced"] == "new > order.place > order.ship"

    def test_after_a_message_was_published_its_sender_is_the_current_task(self, shop: Shop) -> None:
        tasks: list[Any] = []

        def note(sender: Any = None, **_: Any) -> None:
            tasks.append((sender, current_task and current_task.name))

        shop.sends = lambda shop, key: [shop.told.si(key)]
        signals.after_task_publish.connect(note)
        try:
            handle(shop)
        finally:
            signals.after_task_publish.disconnect(note)
        assert tasks == [("told", "order.place")]

    def test_log(self, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "celery.app.trace"):
            handle(shop)
        assert [record.getMessage().partition("[")[0] for record in caplog.records if "succeeded" in record.getMessage()] == [
            "Task order.place",
            "Task order.ship",
            "Task parcel.pack",
        ]


class TestQueues:
    """The main process says with each batch to which queues messages need not go."""

    @pytest.fixture
    def consumer(self) -> Consumer:
        consumer = Consumer()
        consumer.app.conf.saga_hand_over = 10
        return consumer

    def test_are_those_from_which_the_worker_consumes(self, consumer: Consumer) -> None:
        """Not all that its app knows, such as those to which it has published."""
        consumer.app.amqp.queues.add("three")
        assert queues_of(consumer) == ("one", "two")

    def test_none_while_the_connection_is_lost(self, consumer: Consumer) -> None:
        consumer.task_consumer = None
        assert queues_of(consumer) == ()

    @pytest.mark.parametrize("groups", [set(), {"worker", "task"}])
    def test_none_while_events_of_tasks_are_sent(self, consumer: Consumer, groups: set[str]) -> None:
        consumer.event_dispatcher.groups = groups
        assert queues_of(consumer) == ()
        consumer.event_dispatcher.enabled = False
        assert queues_of(consumer) == ("one", "two")

    def test_none_while_there_is_a_rate_limit(self, consumer: Consumer) -> None:
        consumer.task_buckets["any"] = object()
        assert queues_of(consumer) == ()

    def test_none_while_each_publication_is_an_event(self, consumer: Consumer) -> None:
        consumer.app.conf.task_send_sent_event = True
        assert queues_of(consumer) == ()

    def test_are_said_with_each_batch(self, consumer: Consumer) -> None:
        target: Any = StepBatches(consumer, 50, hands_over=True).target
        assert set(target.keywords["queues"]) == {"one", "two"}

    @pytest.mark.parametrize("most", [0, 10])
    def test_are_asked_for_if_the_setting_says_so(self, shop: Shop, consumer: Consumer, most: int) -> None:
        shop.app.conf.saga_hand_over = most
        target = consumer_for(shop.app.tasks["order.place"], consumer).target
        assert (target is handle_together) == (most == 0)
