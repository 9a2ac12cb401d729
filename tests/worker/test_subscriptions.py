"""Events that go to other services: the tasks that ``saga_subscriptions`` names."""

import json
import logging
from queue import Empty
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from celery_sagas import Message, Saga, publish, signals
from celery_sagas.core.ids import derived_id
from celery_sagas.errors import PublishError, StoreUnavailable
from celery_sagas.worker.events import PUBLISH, event_name
from celery_sagas.worker.operators import retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Delivered, NewApp, Worker, backend_of
from tests.servers import unique


class Placed(Message):
    """An event."""

    order_id: str


EVENT = Placed(order_id="42")
NAME = event_name(Placed)
BILLING, CRM = "accounts.order_placed", "contacts.order_placed"


@pytest.fixture
def crm() -> str:
    """The name of a queue of this test alone."""
    return f"crm-{uuid4()}"


@pytest.fixture
def subscribed(crm: str) -> list[Any]:
    """Two subscribers elsewhere, of which one has a queue; a test may have others."""
    return [BILLING, {"task": CRM, "queue": crm}]


@pytest.fixture
def app(new_app: NewApp, subscribed: list[Any]) -> Celery:
    """An app with subscribers elsewhere."""
    return new_app(saga_subscriptions={NAME: subscribed, "shop.old.Placed": subscribed})


@pytest.fixture
def order(app: Celery) -> Any:
    """A saga that subscribes."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: int = 0

    @Order.starts
    def placed(order: Order, event: Placed) -> None:
        order.seen += 1

    return Order


@pytest.fixture
def billed(app: Celery) -> list[Any]:
    """What billing gets, if its task runs here."""
    got: list[Any] = []

    @app.task(name=BILLING)
    def order_placed(event: dict[str, Any]) -> None:
        got.append(event)

    return got


@pytest.fixture
def failing(app: Celery, monkeypatch: pytest.MonkeyPatch) -> dict[str, PublishError]:
    """The tasks that nothing can be sent to, with the errors."""
    errors: dict[str, PublishError] = {}
    publisher = runtime_of(app).publisher
    publish_signature = publisher.publish_signature

    def sometimes(sent: Any) -> None:
        if sent.task in errors:
            raise errors[sent.task] from LookupError("no such queue")
        publish_signature(sent)

    monkeypatch.setattr(publisher, "publish_signature", sometimes)
    return errors


REFUSED, AWAY = PublishError("no such queue"), PublishError("away", connection=True)


def take(app: Celery, queue: str) -> list[tuple[str, str, Any]]:
    """Take what waits in a queue off it: task, id and arguments of each message."""
    taken = []
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as messages:
        while True:
            try:
                message = messages.get_nowait()
            except Empty:
                return taken
            message.ack()
            taken.append((message.headers["task"], message.headers["id"], message.payload[0]))


def tasks(messages: list[Delivered]) -> list[str]:
    return [message.task for message in messages]


class TestFanOut:
    """One task for each name, beside the steps that are known here."""

    def test_each_gets_a_task_beside_the_steps(self, app: Celery, worker: Worker, order: Any, crm: str) -> None:
        message_id = publish(EVENT)
        worker.one()

        data = [{"order_id": "42"}]
        here = [(message.task, message.id, message.args) for message in worker.waiting()]
        assert here == [(task, derived_id(message_id, task), data) for task in ("order.placed", BILLING)]
        assert take(app, crm) == [(CRM, derived_id(message_id, CRM), data)]

    def test_needs_no_step_here(self, app: Celery, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
        """An event that goes elsewhere only is not unhandled."""
        heard: list[str] = []

        def hear(event: str, **_: Any) -> None:
            heard.append(event)

        signals.event_unhandled.connect(hear)
        publish(EVENT)
        worker.one()
        signals.event_unhandled.disconnect(hear)

        assert (tasks(worker.waiting()), heard) == ([BILLING], [])
        assert "has no subscriber" not in caplog.text

    def test_other_events_do_not_go_there(self, app: Celery, worker: Worker, crm: str) -> None:
        class Cancelled(Placed):
            pass

        publish(Cancelled(order_id="42"))
        worker.run()

        assert (tasks(worker.done), take(app, crm)) == ([PUBLISH], [])

    def test_without_a_queue_celery_routes(self, app: Celery, worker: Worker, crm: str) -> None:
        other = unique("other")
        app.conf.task_routes = {"accounts.*": {"queue": "billing"}, "contacts.*": {"queue": other}}
        publish(EVENT)
        worker.one()

        assert worker.waiting() == []
        assert [[task for task, _, _ in take(app, queue)] for queue in ("billing", crm, other)] == [[BILLING], [CRM], []]

    def test_repeat_has_the_same_ids(self, app: Celery, worker: Worker, crm: str) -> None:
        queues = app.conf.task_default_queue, crm
        publish(EVENT)
        delivered = worker.one()
        first = [take(app, queue) for queue in queues]
        worker.deliver_again(delivered)

        assert [len(messages) for messages in first] == [1, 1]
        assert [take(app, queue) for queue in queues] == first

    def test_from_inside_a_step(self, app: Celery, worker: Worker, order: Any) -> None:
        """What caused the event goes with it, so that an answer finds the instance."""

        @order.starts
        def place(order: Any, order_id: str) -> None:
            publish(EVENT)

        place.delay("7")
        for _ in range(2):
            worker.one()

        (sent,) = [message for message in worker.waiting() if message.task == BILLING]
        assert sent.headers["saga_causation"] == {"order": order.find("7").saga.id}

    def test_plain_task_of_this_app(self, worker: Worker, billed: list[Any]) -> None:
        publish(EVENT)
        worker.run()

        assert billed == [{"order_id": "42"}]


class TestLocalStep:
    """A step that is named in the settings too gets one message."""

    @pytest.mark.parametrize("subscribed", [["order.placed"]])
    def test_that_subscribes(self, app: Celery, worker: Worker, order: Any) -> None:
        publish(EVENT)
        worker.run()

        assert tasks(worker.done) == [PUBLISH, "order.placed"]
        assert order.find("42").seen == 1

    @pytest.mark.parametrize("subscribed", [[{"task": "order.placed", "queue": "orders"}]])
    def test_goes_where_the_setting_says(self, app: Celery, worker: Worker, order: Any) -> None:
        publish(EVENT)
        worker.run()

        assert tasks(worker.done) == [PUBLISH]
        assert [task for task, _, _ in take(app, "orders")] == ["order.placed"]

    @pytest.mark.parametrize("subscribed", [["order.was"]])
    def test_under_a_former_name(self, app: Celery, worker: Worker, order: Any) -> None:
        """Every worker calls it as the setting does, so that a repeat has the same id, wherever it runs."""

        @order.handles(formerly="order.was")
        def now(order: Any, event: Placed) -> None: ...

        message_id = publish(EVENT)
        worker.one()

        sent = {message.task: message.id for message in worker.waiting()}
        assert sent == {task: derived_id(message_id, task) for task in ("order.placed", "order.was")}

    @pytest.mark.parametrize("subscribed", [["order.placed"]])
    def test_of_an_event_that_has_moved(self, app: Celery, worker: Worker, order: Any) -> None:
        """What was published under the class's earlier path arrives."""
        app.tasks[PUBLISH].delay("shop.old.Placed", EVENT.__json__())
        worker.run()

        assert order.find("42").seen == 1


class TestFailure:
    """A subscriber that cannot be sent to does not hold up the others, nor has them called again."""

    def test_refused_is_a_dead_letter(
        self, app: Celery, worker: Worker, order: Any, failing: dict[str, PublishError], crm: str
    ) -> None:
        heard: list[tuple[str, str]] = []

        def hear(sender: Any, dead_letter: Any, **_: Any) -> None:
            heard.append((sender.name, dead_letter.task))

        failing[CRM] = REFUSED
        signals.step_failed.connect(hear)
        message_id = publish(EVENT)
        delivered = worker.one()
        signals.step_failed.disconnect(hear)

        assert (delivered.fate, delivered.error) == ("acked", None)
        assert tasks(worker.waiting()) == ["order.placed", BILLING]
        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.saga, dead_letter.error) == (CRM, "", "LookupError")
        assert dead_letter.message_id == derived_id(message_id, CRM)
        assert heard == [(PUBLISH, CRM)]

        failing.clear()
        retry_dead_letter(runtime_of(app), dead_letter)
        assert [(task, arguments) for task, _, arguments in take(app, crm)] == [(CRM, [{"order_id": "42"}])]
        assert backend_of(app).dead.list(10) == []

    @pytest.mark.parametrize("subscribed", [["order.was"]])
    def test_refused_for_a_step_under_its_former_name(
        self, app: Celery, worker: Worker, order: Any, failing: dict[str, PublishError]
    ) -> None:
        """Its dead letter is that of the step, which is retried as one."""

        @order.handles(formerly="order.was")
        def now(order: Any, event: Placed) -> None:
            order.seen += 10

        failing["order.was"] = REFUSED
        publish(EVENT)
        worker.run()
        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.saga) == ("order.now", "order")

        failing.clear()
        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()
        assert order.find("42").seen == 11

    def test_what_was_sent_is_not_sent_again(
        self, app: Celery, worker: Worker, billed: list[Any], failing: dict[str, PublishError], crm: str
    ) -> None:
        """A plain task would not know the repeat."""
        failing[CRM] = AWAY
        message_id = publish(EVENT)
        worker.one()
        (redelivered,) = [message for message in worker.waiting() if message.task == PUBLISH]
        assert (redelivered.id, redelivered.args) == (message_id, [NAME, {"order_id": "42"}, [CRM]])

        failing.clear()
        worker.run()
        assert billed == [{"order_id": "42"}]
        assert take(app, crm) == [(CRM, derived_id(message_id, CRM), [{"order_id": "42"}])]

    def test_what_is_left_is_sent_by_a_worker_that_does_not_know_it(
        self, app: Celery, worker: Worker, order: Any, failing: dict[str, PublishError]
    ) -> None:
        app.tasks[PUBLISH].delay(NAME, EVENT.__json__(), ["order.placed", "stock.reserve"])
        worker.one()

        assert tasks(worker.waiting()) == ["order.placed", "stock.reserve"]

    def test_redelivered_again_and_again(
        self, app: Celery, worker: Worker, order: Any, failing: dict[str, PublishError], crm: str
    ) -> None:
        """It keeps its id and its cause, and ends as a dead letter if the broker refuses it after all."""
        failing.update({BILLING: AWAY, CRM: AWAY})
        app.tasks[PUBLISH].apply_async((NAME, EVENT.__json__()), headers={"saga_causation": {"order": "i1"}}, task_id="e1")
        for _ in range(2):
            worker.one()
        failing.update({BILLING: REFUSED})
        worker.one()
        (redelivered,) = worker.waiting()
        assert (redelivered.id, redelivered.args[2], redelivered.headers["saga_redeliveries"]) == ("e1", [BILLING, CRM], 2)

        failing.update({CRM: REFUSED})
        worker.one()
        dead_letters = {dead_letter.task: dead_letter for dead_letter in backend_of(app).dead.list(10)}
        assert dead_letters.keys() == {BILLING, CRM}
        options = json.loads(dead_letters[CRM].payload)["options"]
        assert (options["queue"], options["headers"]["saga_causation"]) == (crm, {"order": "i1"})
        assert tasks(worker.done).count("order.placed") == 1

    def test_store_that_is_away_leaves_what_has_no_dead_letter(
        self, app: Celery, worker: Worker, failing: dict[str, PublishError], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing.update({BILLING: REFUSED, CRM: REFUSED})
        dead = backend_of(app).dead
        add = dead.add

        def only_billing(dead_letter: Any) -> None:
            if dead_letter.task != BILLING:
                raise StoreUnavailable("memory://", "away")
            add(dead_letter)

        monkeypatch.setattr(dead, "add", only_billing)
        publish(EVENT)
        worker.one()

        assert [dead_letter.task for dead_letter in dead.list(10)] == [BILLING]
        assert [message.args[2] for message in worker.waiting()] == [[CRM]]


class TestEager:
    """Eager mode runs what can run here, and publishes nothing."""

    def test_tasks_of_others_are_left_out(self, new_app: NewApp, caplog: pytest.LogCaptureFixture) -> None:
        app = new_app(eager=True, saga_subscriptions={NAME: [BILLING, CRM]})
        got: list[Any] = []

        @app.task(name=CRM)
        def on_order(event: dict[str, Any]) -> None:
            got.append(event)

        with caplog.at_level(logging.INFO, logger="celery_sagas"):
            publish(EVENT)

        assert got == [{"order_id": "42"}]
        assert f"does not go to {BILLING}" in caplog.text
        assert "has no subscriber" not in caplog.text
