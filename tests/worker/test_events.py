"""Events: one message, fanned out by a worker to each step that subscribes."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_sagas import Message, Saga, SagaKey, publish, signals
from celery_sagas.core.ids import derived_id
from celery_sagas.errors import PublishError, SagaError, StoreError, StoreUnavailable
from celery_sagas.worker.events import PUBLISH, event_name, subscribers
from celery_sagas.worker.operators import retry_dead_letter
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker, as_tasks, backend_of
from tests.waiting import PROGRAM_S


class Shipped(Message):
    """An event."""

    order_id: str
    parcel_id: str


class ShippedFar(Shipped):
    """A more special event."""


class Lost(Message):
    """An event that nobody wants."""

    order_id: str


@pytest.fixture
def sagas(app: Celery) -> Any:
    """Two sagas that subscribe to one event, and steps that do not."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        seen: list[str] = []

    class Parcel(Saga, correlate_by="parcel_id"):
        parcel_id: str

    @Order.starts
    def order_shipped(order: Order, event: Shipped) -> None:
        order.seen.append(order.saga.message.id)

    @Parcel.starts
    def parcel_shipped(parcel: Parcel, event: Shipped | None) -> None: ...

    @Order.handles
    def far(order: Order, event: ShippedFar) -> None:
        order.seen.append("far")

    @Order.handles
    def two_arguments(order: Order, event: Shipped, note: str = "") -> None:
        raise AssertionError("it subscribes to nothing")

    @Order.handles
    def many(order: Order, event: list[Shipped], key: Annotated[str, SagaKey] = "42") -> None:
        raise AssertionError("it subscribes to nothing")

    return Order, Parcel


EVENT = Shipped(order_id="42", parcel_id="7")

SHARED_EVENTS = """
from celery_sagas import Message

class Placed(Message):
    order_id: str
"""

WEB_PROCESS = """
import json, sys
from celery import Celery
from celery_sagas import publish
from shared_events import Placed

app = Celery("web")
app.conf.update(json.loads(sys.argv[1]), saga_backend="memory://")
print(publish(Placed(order_id="42")))
"""


def _run(program: str, path: Path, *arguments: str) -> str:
    """Run a program in a process of its own, beside the modules in a folder; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *sys.path])}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PROGRAM_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestPublish:
    """Outside a step it is published at once, confirmed; inside one it joins the commit."""

    def test_outside_is_one_message(self, worker: Worker, sagas: Any) -> None:
        message_id = publish(EVENT)

        (message,) = worker.waiting()
        assert (message.task, message.id) == (PUBLISH, message_id)
        assert message.args == [event_name(Shipped), {"order_id": "42", "parcel_id": "7"}]

    def test_outside_needs_no_subscriber(self, worker: Worker, app: Celery) -> None:
        """A web process has imported no step."""
        publish(EVENT)

        assert len(worker.waiting()) == 1

    def test_outside_needs_no_store(self, new_app: NewApp, tmp_path: Path) -> None:
        """A web process may not even be allowed to reach it."""
        app = new_app()
        app.conf.saga_backend = f"sqlite:///{tmp_path}/missing/sagas.sqlite3"
        publish(EVENT)

        assert len(Worker(app).waiting()) == 1

    def test_from_a_process_that_has_imported_no_step(
        self, new_app: NewApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All that it shares with the worker is the broker and the module of the event."""
        (tmp_path / "shared_events.py").write_text(SHARED_EVENTS)
        folders = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), str(tmp_path))
        broker = {"broker_url": "filesystem://", "broker_transport_options": folders, "task_default_queue": "events"}
        app = new_app()
        app.conf.update(broker)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        message_id = _run(WEB_PROCESS, tmp_path, json.dumps(broker))
        monkeypatch.syspath_prepend(tmp_path)
        event = importlib.import_module("shared_events").Placed

        @Order.starts
        def placed(order: Order, event: event) -> None: ...  # type: ignore[valid-type]

        worker = Worker(app)
        worker.run()
        assert [(done.task, done.error) for done in worker.done] == [(PUBLISH, None), ("order.placed", None)]
        assert worker.done[0].id == message_id
        assert Order.find("42") is not None

    def test_by_a_participant_that_runs_again(self, app: Celery, worker: Worker, sagas: Any) -> None:
        """The same events have the same ids, so that their subscribers drop the repeat; other events have others."""
        choices = iter(["7", "7", "8"])

        @app.task
        def carrier() -> None:
            publish(Shipped(order_id="42", parcel_id=next(choices)))
            publish(EVENT)
            publish(EVENT)

        carrier.delay()
        first = worker.run()[0]
        for _ in range(2):
            worker.deliver_again(first)
            worker.run()
        ids = [done.id for done in worker.done if done.task == PUBLISH]
        assert len(ids) == 9
        assert ids[0:3] == ids[3:6]
        assert len(set(ids)) == 4
        order, parcel = sagas
        assert len(order.find("42").seen) == 4
        assert parcel.find("8") is not None

    @pytest.mark.parametrize("event", [None, "text", {"order_id": "42"}, Shipped])
    def test_only_messages(self, app: Celery, event: Any) -> None:
        with pytest.raises(TypeError, match="takes a Message"):
            publish(event)

    @as_tasks
    def test_inside_joins_the_commit(self, app: Celery, worker: Worker, sagas: Any) -> None:
        order, parcel = sagas
        waiting_in_handler: list[int] = []

        @order.starts
        def ship(order: Any, order_id: str, fail: bool = False) -> None:
            publish(EVENT)
            waiting_in_handler.append(len(worker.waiting()))
            if fail:
                raise KeyError

        ship.delay("43", fail=True)
        worker.run()
        assert backend_of(app).outbox.count() == 0
        assert [done.task for done in worker.done] == ["order.ship"]

        ship.delay("43")
        worker.run()
        assert waiting_in_handler == [0, 0]
        assert parcel.find("7") is not None

    def test_inside_the_id_is_derived(self, app: Celery, worker: Worker, sagas: Any) -> None:
        ids: list[str] = []

        @sagas[0].starts
        def ship(order: Any, order_id: str) -> None:
            ids.append(publish(EVENT))
            if len(ids) == 1:
                raise Ignore

        for _ in range(2):
            ship.apply_async(("43",), task_id="m1")
        worker.run()

        assert ids[0] == ids[1]

    def test_for_a_missing_instance_joins_what_it_commits(self, app: Celery, worker: Worker, sagas: Any) -> None:
        order, parcel = sagas

        @order.handles
        def cancel(order: Any, order_id: str) -> None:
            raise AssertionError("there is none")

        @cancel.if_missing
        def ship_all_the_same(missing: Any, order_id: str) -> None:
            publish(EVENT)
            assert worker.waiting() == []

        cancel.delay("43")
        worker.run()

        assert worker.done[0].error is None
        assert parcel.find("7") is not None

    def test_in_a_plain_task_is_published_at_once_and_caused(self, app: Celery, worker: Worker, sagas: Any) -> None:
        @app.task(name="scan")
        def scan() -> None:
            publish(EVENT)

        scan.apply_async(headers={"saga_causation": {"order": "x"}})
        worker.one()

        (message,) = worker.waiting()
        assert message.headers["saga_causation"] == {"order": "x"}

    def test_broker_that_is_away_is_an_error_of_the_tree(self, app: Celery, sagas: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ConnectionRefusedError("nobody listens")

        publisher = runtime_of(app).publisher
        monkeypatch.setattr(type(app.tasks[PUBLISH]), "apply_async", fail)
        assert publisher is runtime_of(app).publisher

        with pytest.raises(PublishError, match="did not confirm the message: ConnectionRefusedError") as raised:
            publish(EVENT)

        assert isinstance(raised.value, SagaError)
        assert isinstance(raised.value.__cause__, ConnectionRefusedError)
        assert raised.value.connection


@pytest.fixture
def refused(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose messages the broker refuses, though it is there."""
    tasks: list[str] = []
    publisher = runtime_of(app).publisher
    publish_signature = publisher.publish_signature

    def sometimes(sent: Any) -> None:
        if sent.task in tasks:
            raise PublishError("no such queue") from LookupError("no such queue")
        publish_signature(sent)

    monkeypatch.setattr(publisher, "publish_signature", sometimes)
    return tasks


class TestFanOut:
    """One task for each subscriber: a retry and a commit of its own."""

    def test_each_subscriber_gets_a_task(self, worker: Worker, sagas: Any) -> None:
        order, parcel = sagas
        publish(EVENT)
        worker.one()

        assert [message.task for message in worker.waiting()] == ["order.order_shipped", "parcel.parcel_shipped"]
        worker.run()
        assert (order.find("42") is None, parcel.find("7") is None) == (False, False)

    def test_one_that_fails_leaves_the_other_alone(self, app: Celery, worker: Worker, sagas: Any) -> None:
        order, parcel = sagas

        @order.starts
        def breaks(order: Any, event: Shipped) -> None:
            raise KeyError

        publish(EVENT)
        worker.run()

        assert [type(done.error) for done in worker.done if done.task == "order.breaks"] == [KeyError]
        assert parcel.find("7") is not None

    def test_ids_are_derived(self, worker: Worker, sagas: Any) -> None:
        """A fan-out that runs twice reaches each subscriber once."""
        order, _ = sagas
        publish(EVENT)
        worker.run()
        worker.deliver_again(worker.done[0])
        worker.run()

        messages = [done for done in worker.done if done.task == "order.order_shipped"]
        assert len(messages) == 2
        assert len({message.id for message in messages}) == 1
        assert order.find("42").seen == [messages[0].id]
        assert len({done.id for done in worker.done}) == 3

    def test_exact_class_only(self, worker: Worker, sagas: Any) -> None:
        order, parcel = sagas
        publish(EVENT)
        worker.run()
        publish(ShippedFar(order_id="42", parcel_id="8"))
        worker.run()

        assert order.find("42").seen[1:] == ["far"]
        assert parcel.find("8") is None

    def test_no_subscriber_is_visible(self, worker: Worker, sagas: Any, caplog: pytest.LogCaptureFixture) -> None:
        seen: list[tuple[str, str]] = []

        def receiver(sender: Any, event: str, message_id: str, **_: Any) -> None:
            seen.append((event, message_id))

        signals.event_unhandled.connect(receiver)
        message_id = publish(Lost(order_id="42"))
        delivered = worker.one()
        signals.event_unhandled.disconnect(receiver)

        assert delivered.error is None
        assert seen == [(event_name(Lost), message_id)]
        assert f"{event_name(Lost)}[{message_id}] has no subscriber" in caplog.text

    def test_event_that_does_not_fit_any_more_fails_in_the_step(self, app: Celery, worker: Worker, sagas: Any) -> None:
        app.tasks[PUBLISH].delay(event_name(Shipped), {"order_id": "42"})
        worker.run()

        assert {type(done.error).__name__ for done in worker.done[1:]} == {"InvalidMessage"}

    def test_broker_that_goes_away_puts_the_event_off(
        self, app: Celery, worker: Worker, sagas: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        order, parcel = sagas
        publisher = runtime_of(app).publisher
        publish_signature, errors = publisher.publish_signature, [None, PublishError("away", True), None, None, None]

        def sometimes(sent: Any) -> None:
            if error := errors.pop(0):
                raise error
            publish_signature(sent)

        message_id = publish(EVENT)
        monkeypatch.setattr(publisher, "publish_signature", sometimes)
        assert worker.one().fate == "acked"
        assert sorted(message.task for message in worker.waiting()) == [PUBLISH, "order.order_shipped"]
        assert [message.id for message in worker.waiting() if message.task == PUBLISH] == [message_id]
        worker.run()

        assert len(order.find("42").seen) == 1
        assert parcel.find("7") is not None

    def test_redelivered_keeps_ids_and_cause(
        self, app: Celery, worker: Worker, sagas: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What is sent later is what would have been sent at once."""
        publisher = runtime_of(app).publisher
        publish_signature, errors = publisher.publish_signature, [PublishError("away", True)] * 4

        def later(sent: Any) -> None:
            if sent.task != PUBLISH and errors:
                raise errors.pop()
            publish_signature(sent)

        monkeypatch.setattr(publisher, "publish_signature", later)
        arguments = (event_name(Shipped), EVENT.__json__())
        app.tasks[PUBLISH].apply_async(arguments, task_id="e1", headers={"saga_causation": {"order": "i1"}})
        for _ in range(3):
            worker.one()

        sent = {message.task: message for message in worker.waiting()}
        steps = ["order.order_shipped", "parcel.parcel_shipped"]
        assert {task: message.id for task, message in sent.items()} == {step: derived_id("e1", step) for step in steps}
        assert [message.headers["saga_causation"] for message in sent.values()] == [{"order": "i1"}] * 2
        assert [message.headers["saga_cause"] for message in sent.values()] == ["e1"] * 2

    def test_subscriber_that_cannot_be_sent_to_has_a_dead_letter(
        self, app: Celery, worker: Worker, sagas: Any, refused: list[str]
    ) -> None:
        """It is not tried indefinitely, the others get the event, and its own message is not lost."""
        order, parcel = sagas
        message_id = publish(EVENT)
        refused.append("order.order_shipped")

        assert (worker.one().error, worker.one().task) == (None, "parcel.parcel_shipped")
        assert worker.waiting() == []
        assert parcel.find("7") is not None
        (dead_letter,) = backend_of(app).dead.list(10)
        assert (dead_letter.task, dead_letter.saga, dead_letter.error) == ("order.order_shipped", "order", "LookupError")
        assert dead_letter.message_id == derived_id(message_id, "order.order_shipped")

        refused.clear()
        retry_dead_letter(runtime_of(app), dead_letter)
        worker.run()
        assert len(order.find("42").seen) == 1

    def test_dead_letter_that_the_store_refuses_is_kept_without_the_event(
        self, app: Celery, worker: Worker, sagas: Any, refused: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else the event would be published again indefinitely."""
        dead = backend_of(app).dead
        add = dead.add

        def small(dead_letter: Any) -> None:
            if "unreadable" not in dead_letter.payload:
                raise StoreError("too large")
            add(dead_letter)

        monkeypatch.setattr(dead, "add", small)
        refused.append("order.order_shipped")
        publish(EVENT)
        worker.run()

        (dead_letter,) = dead.list(10)
        assert (dead_letter.task, dead_letter.error) == ("order.order_shipped", "LookupError")

    def test_each_subscriber_has_a_dead_letter_of_its_own(
        self, app: Celery, worker: Worker, sagas: Any, refused: list[str]
    ) -> None:
        """And the signal tells of each, as of other dead letters."""
        heard: list[Any] = []

        def hear(sender: Any, dead_letter: Any, exception: Any, **_: Any) -> None:
            heard.append((sender.name, dead_letter.task, type(exception)))

        publish(EVENT)
        refused.extend(["order.order_shipped", "parcel.parcel_shipped"])
        signals.step_failed.connect(hear)
        try:
            worker.one()
        finally:
            signals.step_failed.disconnect(hear)

        assert sorted(dead_letter.task for dead_letter in backend_of(app).dead.list(10)) == refused
        assert heard == [(task, task, LookupError) for task in refused]

    def test_dead_letter_of_a_subscriber_keeps_what_caused_the_event(
        self, app: Celery, worker: Worker, sagas: Any, refused: list[str]
    ) -> None:
        """Its step may be correlated by that alone."""
        app.tasks[PUBLISH].apply_async((event_name(Shipped), EVENT.__json__()), headers={"saga_causation": {"order": "i1"}})
        refused.append("order.order_shipped")
        (done,) = [worker.one()]

        (dead_letter,) = backend_of(app).dead.list(10)
        headers = json.loads(dead_letter.payload)["options"]["headers"]
        assert headers == {"saga_causation": {"order": "i1"}, "saga_cause": done.id}

    def test_store_that_is_away_puts_the_event_off(self, app: Celery, worker: Worker, sagas: Any, refused: list[str]) -> None:
        """The message that was sent already does nothing the second time."""
        order, parcel = sagas
        publish(EVENT)
        refused.append("order.order_shipped")
        add = backend_of(app).dead.add

        def fail(_: Any) -> None:
            backend_of(app).dead.add = add  # type: ignore[method-assign]
            refused.clear()
            raise StoreUnavailable("memory://", "away")

        backend_of(app).dead.add = fail  # type: ignore[method-assign]

        assert isinstance(worker.one().error, Ignore)
        worker.run()
        assert len(order.find("42").seen) == 1
        assert parcel.find("7").saga.version == 1
        assert backend_of(app).dead.list(10) == []

    def test_task_that_retries_itself_publishes_anew(self, app: Celery, worker: Worker, sagas: Any) -> None:
        """It polls, say; its id stays the same."""
        order, _ = sagas

        @app.task(bind=True, max_retries=2)
        def poll(self: Any) -> None:
            publish(EVENT)
            if self.request.retries < 2:
                raise self.retry(countdown=0)

        poll.delay()
        worker.run()

        assert len(order.find("42").seen) == 3

    def test_belongs_to_the_instance_that_published(self, worker: Worker) -> None:
        class Invoice(Saga, correlate_by="number"):
            number: str
            shipped: bool = False

        class Note(Message):
            text: str

        @Invoice.starts
        def invoice(invoice: Invoice, number: str) -> None:
            publish(Note(text="x"))

        @Invoice.handles
        def noted(invoice: Invoice, note: Note) -> None:
            invoice.shipped = True

        invoice.delay("1")
        worker.run()

        found = Invoice.find("1")
        assert found is not None
        assert found.shipped

    def test_is_acknowledged_late(self, app: Celery) -> None:
        """Nothing is acknowledged unless it is published."""
        task = app.tasks[PUBLISH]
        assert (task.acks_late, task.reject_on_worker_lost, task.ignore_result) == (True, True, True)


def test_subscribers_of_a_starter_and_in_order(app: Celery, sagas: Any) -> None:
    """The order of definition."""
    assert [step.name for step in subscribers(event_name(Shipped))] == ["order.order_shipped", "parcel.parcel_shipped"]


def test_eager_in_a_step(new_app: NewApp) -> None:
    """After its commit; not if it fails."""
    new_app(eager=True)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    class Parcel(Saga, correlate_by="parcel_id"):
        parcel_id: str

    @Order.starts
    def ship(order: Order, order_id: str, fail: bool = False) -> None:
        publish(EVENT)
        assert Parcel.find("7") is None
        if fail:
            raise KeyError

    @Parcel.starts
    def packed(parcel: Parcel, event: Shipped) -> None:
        assert Order.find("42") is not None

    with pytest.raises(KeyError):
        ship.delay("42", fail=True)
    assert Parcel.find("7") is None
    ship.delay("42")
    assert Parcel.find("7") is not None


def test_eager(new_app: NewApp) -> None:
    """All of it at once."""
    new_app(eager=True)

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def shipped(order: Order, event: Shipped) -> None: ...

    publish(EVENT)

    assert Order.find("42") is not None
