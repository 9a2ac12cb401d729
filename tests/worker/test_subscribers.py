"""``@subscribe``: plain tasks that get events."""

from decimal import Decimal
from typing import Any

import pytest
from celery import Celery, Task, shared_task

from celery_sagas import Message, Saga, aggregator, publish, signals, subscribe
from celery_sagas.core.ids import derived_id
from celery_sagas.errors import DefinitionError, InvalidMessage
from celery_sagas.testing.harness.harness import SagaHarness
from celery_sagas.worker.events import PUBLISH, event_name, subscribed_tasks
from tests.apps import NewApp, Worker
from tests.every_store import stored_app, url
from tests.worker.requests.trips import on_every_store

__all__ = ["stored_app", "url"]


class Placed(Message):
    """An event."""

    order_id: str
    total: Decimal = Decimal(1)


class Lost(Message):
    """An event that nobody wants."""


EVENT = Placed(order_id="42", total=Decimal("9.90"))
NAME = event_name(Placed)


def handle(event: Placed) -> None:
    """Do nothing with an event."""


@pytest.fixture
def got() -> list[Any]:
    """What the subscribers have got."""
    return []


@pytest.fixture
def on_order(definitions: None, got: list[Any]) -> Any:
    """A shared task that subscribes, defined before there is any app."""

    @subscribe
    @shared_task(name="on_order")
    def on_order(event: Placed) -> str:
        got.append(event)
        return event.order_id

    return on_order


def handled(worker: Worker) -> list[tuple[str, Any]]:
    """Run all messages; return the tasks, with their errors."""
    return [(each.task, each.error) for each in worker.run()]


class TestFanOut:
    def test_event_comes_as_an_object(self, on_order: Any, app: Celery, worker: Worker, got: list[Any]) -> None:
        message_id = publish(EVENT)
        worker.one()
        (message,) = worker.waiting()
        worker.run()

        assert (message.task, message.id) == ("on_order", derived_id(message_id, "on_order"))
        assert message.args == [{"order_id": "42", "total": "9.90"}]
        assert got == [EVENT]

    def test_beside_steps_and_other_subscribers(self, on_order: Any, app: Celery, worker: Worker, got: list[Any]) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def placed(order: Order, event: Placed) -> None: ...

        @subscribe
        @app.task(bind=True, name="other", autoretry_for=(KeyError,), acks_late=True)
        def other(self: Any, placed: Placed | None, note: str = "") -> None:
            got.append((self.name, self.request.id, placed))

        message_id = publish(EVENT)
        assert handled(worker) == [(name, None) for name in (PUBLISH, "order.placed", "on_order", "other")]
        assert got == [EVENT, ("other", derived_id(message_id, "other"), EVENT)]
        assert Order.find("42") is not None

    def test_setting_that_names_it_too(self, on_order: Any, new_app: NewApp, got: list[Any]) -> None:
        """It gets one message, as the setting says."""
        app = new_app()
        app.conf.saga_subscriptions = {NAME: [{"task": "on_order", "queue": app.conf.task_default_queue}]}
        worker = Worker(app)
        publish(EVENT)

        assert handled(worker) == [(PUBLISH, None), ("on_order", None)]
        assert got == [EVENT]

    def test_other_events_do_not_come(self, on_order: Any, app: Celery, worker: Worker, got: list[Any]) -> None:
        class Special(Placed):
            """A more special event."""

        unhandled: list[str] = []

        def note(event: str, **_: Any) -> None:
            unhandled.append(event)

        signals.event_unhandled.connect(note)
        for event in (Lost(), Special(order_id="43"), EVENT):
            publish(event)
        worker.run()
        signals.event_unhandled.disconnect(note)

        assert got == [EVENT]
        assert unhandled == [event_name(Lost), event_name(Special)]

    def test_event_that_does_not_fit(self, on_order: Any, app: Celery, worker: Worker, got: list[Any]) -> None:
        """It fails as the task's messages do; Celery's own retries cannot mend it."""

        @subscribe
        @app.task(name="trying", autoretry_for=(Exception,), max_retries=3)
        def trying(event: Placed) -> None:
            got.append(event)

        app.tasks[PUBLISH].delay(NAME, {"order": "42"})
        done = worker.run()

        assert [(each.task, type(each.error)) for each in done[1:]] == [("on_order", InvalidMessage), ("trying", InvalidMessage)]
        assert got == []

    def test_repeat_has_the_same_id(self, on_order: Any, app: Celery, worker: Worker, got: list[Any]) -> None:
        publish(EVENT)
        first, _ = worker.run()
        worker.deliver_again(first)
        worker.run()

        once, again = (each.id for each in worker.done if each.task == "on_order")
        assert once == again

    def test_in_eager_mode(self, on_order: Any, eager: Celery, got: list[Any]) -> None:
        publish(EVENT)
        assert got == [EVENT]

    def test_in_a_harness(self, on_order: Any, app: Celery, got: list[Any]) -> None:
        with SagaHarness(app) as harness:
            publish(EVENT)
            harness.run()
            assert [message.task for message in harness.sent] == [PUBLISH, "on_order"]
        assert got == [EVENT]

    def test_pydantic_task_of_celerys(self, app: Celery, worker: Worker, got: list[Any]) -> None:
        @subscribe
        @app.task(name="modelled", pydantic=True)
        def modelled(event: Placed) -> None:
            got.append(event)

        publish(EVENT)
        worker.run()
        assert got == [EVENT]


@on_every_store
def test_event_that_a_step_publishes(url: str, stored_app: Celery, worker: Worker, on_order: Any, got: list[Any]) -> None:
    """It is sent with the step's commit, and once, although the step's message is repeated."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str, fail: bool = False) -> None:
        publish(EVENT)
        if fail:
            raise KeyError

    place.delay("41", fail=True)
    place.delay("42")
    done = worker.run()
    worker.deliver_again(done[1])

    assert handled(worker) == []
    assert [each.task for each in done] == ["order.place", "order.place", PUBLISH, "on_order"]
    assert got == [EVENT]


@pytest.fixture
def app(request: pytest.FixtureRequest, new_app: NewApp) -> Celery:
    """An app; on a store, if the test names one."""
    app: Celery = request.getfixturevalue("stored_app") if "url" in request.fixturenames else new_app()
    return app


class TestDirectCalls:
    """The task is the same as before, and is given the event as an object however it is called."""

    def test_message_of_its_own(self, on_order: Any, app: Celery, worker: Worker, got: list[Any]) -> None:
        on_order.delay(EVENT)
        on_order.delay(event=EVENT)
        worker.run()
        assert got == [EVENT, EVENT]

    def test_call(self, on_order: Any, app: Celery, got: list[Any]) -> None:
        assert on_order(EVENT) == "42"
        assert got[0] is EVENT
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            on_order()

    def test_it_is_returned_unchanged(self, app: Celery) -> None:
        class Own(Task):
            name = "class.based"

            def run(self, event: Placed) -> None:
                """Do nothing."""

        registered, shared = app.register_task(Own()), shared_task(name="shared")(handle)
        for task in (registered, shared):
            assert subscribe(task) is task
        app.finalize()
        assert subscribed_tasks(app, NAME) == ["class.based", "shared"]
        assert shared.run.__doc__ == handle.__doc__


class TestApps:
    """Shared tasks are in every app; each fans out to those that it has."""

    def test_apps_before_and_after(self, new_app: NewApp, got: list[Any]) -> None:
        before = new_app()
        before.finalize()
        pending = new_app()

        @subscribe
        @shared_task(name="shared")
        def shared(event: Placed) -> None:
            got.append(event)

        after = new_app()
        for each in (pending, after):
            assert subscribed_tasks(each, NAME) == []
            each.finalize()
        assert [subscribed_tasks(each, NAME) for each in (before, pending, after)] == [["shared"]] * 3
        for each in (before, pending, after):
            each.set_current()
            publish(EVENT)
            Worker(each).run()
        assert got == [EVENT] * 3

    def test_no_app_is_finalised_or_made_current(self, new_app: NewApp) -> None:
        app, current = new_app(), new_app()

        @subscribe
        @shared_task(name="shared")
        def shared(event: Placed) -> None: ...

        assert not app.finalized
        assert not current.finalized
        app.finalize()
        assert subscribed_tasks(app, NAME) == ["shared"]
        assert not current.finalized

    def test_task_of_one_app(self, new_app: NewApp) -> None:
        """Celery gives it to every app; unless it says ``shared=False``."""
        first, second = new_app(), new_app()

        @subscribe
        @first.task(name="everywhere")
        def everywhere(event: Placed) -> None: ...

        @subscribe
        @first.task(name="here", shared=False)
        def here(event: Placed) -> None: ...

        second.finalize()
        assert not first.finalized
        first.finalize()
        assert subscribed_tasks(first, NAME) == ["everywhere", "here"]
        assert subscribed_tasks(second, NAME) == ["everywhere"]

    def test_task_that_subscribes_twice(self, app: Celery, worker: Worker, on_order: Any, got: list[Any]) -> None:
        subscribe(on_order)
        publish(EVENT)
        worker.run()
        assert got == [EVENT]


class TestDefinition:
    def test_wrong_parameter_is_an_error_when_the_app_is_finalised(self, app: Celery) -> None:
        @subscribe
        @shared_task(name="wrong")
        def wrong(event: dict[str, Any]) -> None: ...

        with pytest.raises(DefinitionError, match="wrong: it subscribes, and its first parameter 'event' is annotated dict"):
            app.finalize()

    def test_wrong_parameter_is_an_error_at_once_after_that(self, app: Celery) -> None:
        app.finalize()
        with pytest.raises(DefinitionError, match="two parameters, 'one' and 'two'"):

            @subscribe
            @shared_task(name="two")
            def two(one: Placed, two: Lost) -> None: ...

        assert subscribed_tasks(app, NAME) == []

    def test_step_or_aggregator(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def placed(order: Order, event: Placed) -> None: ...

        @aggregator(name="batches", size=2)
        def batches(batch: Any) -> None: ...

        for each in (placed, batches):
            with pytest.raises(DefinitionError, match="only plain tasks have @subscribe"):
                subscribe(each)

    @pytest.mark.parametrize("given", [lambda event: None, Placed, None, "on_order", Task])
    def test_no_task(self, app: Celery, given: Any) -> None:
        with pytest.raises(DefinitionError, match=r"it subscribes, and is not a task\. Put @subscribe above @shared_task"):
            subscribe(given)

    def test_below_the_task(self, app: Celery) -> None:
        with pytest.raises(DefinitionError, match=r"below: it subscribes, and is not a task"):

            @shared_task
            @subscribe
            def below(event: Placed) -> None: ...
