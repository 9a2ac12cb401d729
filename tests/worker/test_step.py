"""Steps and apps: which app gets a step, when, and under which names."""

import gc
import pickle
import weakref
from typing import Any

import pytest
from celery import Celery, Task, shared_task
from celery.result import AsyncResult

from celery_sagas import Saga, Step
from celery_sagas.errors import DefinitionError
from celery_sagas.worker.tasks import StepTask
from tests.apps import NewApp, Worker, backend_of


def define(**options: Any) -> Any:
    """Define a saga with a starter."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        total: int = 0

    def place(order: Order, order_id: str) -> str:
        """Place an order."""
        order.total += 1
        return "placed"

    Order.place = Order.starts(**options)(place)  # type: ignore[attr-defined]
    return Order


class TestApps:
    """Definitions are global to a process: every app gets them."""

    def test_app_made_after_the_definitions(self, new_app: NewApp) -> None:
        order = define()
        app = new_app()

        assert isinstance(app.tasks["order.place"], StepTask)
        assert order.place.app is app

    def test_definitions_after_the_app_is_finalised(self, app: Celery) -> None:
        app.finalize()
        define()

        assert "order.place" in app.tasks

    def test_definition_touches_no_app(self, new_app: NewApp) -> None:
        """A task module may be imported before the settings are known."""
        app = new_app()
        define()

        assert not app.finalized
        assert not app.configured

    def test_being_looked_at_touches_no_app(self, new_app: NewApp) -> None:
        """Pydantic 2.7 asks everything in a module for its class, while it defines a model there."""
        app = new_app()
        order = define()

        assert isinstance(order.place, Task)
        assert not isinstance(order.place, str)
        assert not app.finalized

        app.finalize()
        assert isinstance(order.place, app.Task)

    def test_being_looked_at_needs_no_task(self, new_app: NewApp) -> None:
        """An app that is closed stays the current one, and gets no tasks any more."""
        with new_app() as app:
            app.finalize()
        order = define()

        assert "order.place" not in app.tasks
        assert isinstance(order.place, Task)
        assert not isinstance(order.place, str)

    def test_each_app_has_a_task_and_a_backend_of_its_own(self, new_app: NewApp) -> None:
        order = define()
        first, second = new_app(), new_app()
        second.set_current()
        order.place.delay("42")
        Worker(second).run()

        assert order.find("42") is not None
        assert backend_of(first) is not backend_of(second)
        first.set_current()
        assert order.find("42") is None
        assert first.tasks["order.place"] is not second.tasks["order.place"]
        assert order.place.app is first

    def test_shared_backend(self, new_app: NewApp) -> None:
        order = define()
        first, second = new_app(), new_app()
        first.conf.saga_backend = second.conf.saga_backend
        first.set_current()
        order.place("42")
        second.set_current()

        assert order.find("42") is not None

    def test_prefix_partitions_a_backend(self, new_app: NewApp) -> None:
        order = define()
        first, second = new_app(saga_prefix="a"), new_app(saga_prefix="b")
        first.conf.saga_backend = second.conf.saga_backend
        first.set_current()
        order.place("42")
        second.set_current()

        assert order.find("42") is None

    def test_namespaced_settings(self, new_app: NewApp) -> None:
        """Django: ``CELERY_SAGA_BACKEND``."""

        class Settings:
            CELERY_BROKER_URL = "memory://"
            CELERY_SAGA_BACKEND = "memory://namespaced"
            CELERY_SAGA_PREFIX = "p"

        order = define()
        app = new_app()
        django = Celery("django")
        try:
            django.config_from_object(Settings, namespace="CELERY")
            assert backend_of(django).url == "memory://namespaced"
            order.place("42")
            app.conf.saga_backend, app.conf.saga_prefix = "memory://namespaced", "p"
            app.set_current()
            assert order.find("42") is not None
        finally:
            django.close()

    def test_app_that_nobody_keeps_is_collected(self, new_app: NewApp) -> None:
        """Tests and notebooks make many."""
        define()
        app = Celery("short-lived", broker="memory://", set_as_current=False)
        app.finalize()
        assert "order.place" in app.tasks
        seen = weakref.ref(app.tasks["order.place"])
        app.close()
        del app
        gc.collect()

        assert seen() is None


class TestNames:
    """``{saga}.{function}``, whatever module it lives in."""

    def test_former_names_stay_alive(self, app: Celery, worker: Worker) -> None:
        order = define(formerly=("orders.place", "order.begin"))

        for number, name in enumerate(("order.place", "orders.place", "order.begin")):
            app.send_task(name, (str(number),), task_id="same")
        worker.run()

        assert [order.find(str(number)) is not None for number in range(3)] == [True, False, False]  # one message, one effect
        app.send_task("orders.place", ("9",))
        worker.run()
        assert order.find("9").saga.version == 1
        entries = backend_of(app).journal.history(["order"], "9", 10)
        assert [entry.step for entry in entries] == ["orders.place"]  # where old code looks too, if it gets the message again

    def test_redefinition_replaces(self, app: Celery, worker: Worker) -> None:
        """Reload, notebooks, tests."""
        define()
        app.finalize()
        old = app.tasks["order.place"]
        order = define()

        assert app.tasks["order.place"] is not old
        order.place.delay("42")
        worker.run()
        assert order.find("42").total == 1

    def test_redefinition_before_the_app_is_finalised(self, app: Celery) -> None:
        define()
        order = define()

        assert order.place("42") == "placed"
        assert order.find("42").total == 1

    def test_two_steps_of_one_name(self, app: Celery) -> None:
        order = define()

        with pytest.raises(DefinitionError, match=r"order\.place"):

            @order.starts
            def place(order: Any, order_id: str) -> None: ...

    @pytest.mark.filterwarnings("ignore::UserWarning")
    @pytest.mark.parametrize("first", ["plain", "step"])
    @pytest.mark.parametrize("kind", ["app", "app alone", "shared"])
    def test_clash_with_a_plain_task(self, app: Celery, first: str, kind: str) -> None:
        """On every Celery version, whoever comes first."""

        def plain() -> None:
            def task() -> None: ...

            options: dict[str, Any] = {"shared": False} if kind == "app alone" else {}
            (shared_task if kind == "shared" else app.task)(name="order.place", **options)(task)

        for what in (plain, define) if first == "plain" else (define, plain):
            what()

        with pytest.raises(DefinitionError, match=r"order\.place: another task of the app has this name"):
            app.finalize()

    def test_clash_of_a_former_name(self, app: Celery) -> None:
        @app.task(name="orders.place")
        def task() -> None: ...

        define(formerly="orders.place")

        with pytest.raises(DefinitionError, match=r"orders\.place"):
            app.finalize()

    def test_clash_on_a_finalised_app(self, app: Celery) -> None:
        @app.task(name="order.place")
        def task() -> None: ...

        app.finalize()

        with pytest.raises(DefinitionError, match="another task"):
            define()

    def test_name_cannot_be_chosen(self, app: Celery) -> None:
        order = define()

        with pytest.raises(DefinitionError, match="name='mine' cannot be set"):

            @order.starts(name="mine")
            def begin(order: Any, order_id: str) -> None: ...


class TestAnnotations:
    """They are resolved when the app is finalised."""

    def test_unknown_name(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str, what: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(DefinitionError, match=r"order\.place.*Unknown.*TYPE_CHECKING"):
            app.finalize()

    def test_forward_reference(self, app: Celery, worker: Worker) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str, later: "Later | None" = None) -> None: ...

        place.delay("42")
        worker.run()
        assert Order.find("42") is not None

    def test_starter_without_key(self, app: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, number: int) -> None: ...

        with pytest.raises(DefinitionError, match="by="):
            app.finalize()

    def test_late_definition_that_is_wrong_fails_when_it_is_used(self, app: Celery) -> None:
        app.finalize()

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, number: int) -> None: ...

        with pytest.raises(DefinitionError, match="by="):
            place(5)


class Later:
    """A class that stands below its use."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return a schema that takes anything."""
        from pydantic_core import core_schema

        return core_schema.any_schema()


class TestProxy:
    """What the decorators return stands for the task in the current app."""

    def test_is_a_step_and_a_task(self, app: Celery) -> None:
        step = define().place

        assert isinstance(step, Step)
        assert isinstance(step, Task)
        assert step.name == "order.place"
        assert step.__doc__ == "Place an order."

    def test_handler_is_the_plain_function(self, app: Celery) -> None:
        order = define()
        state = order(order_id="42")

        assert order.place.handler(state, "42") == "placed"
        assert state.total == 1
        assert order.find("42") is None

    def test_delay_returns_a_result(self, app: Celery) -> None:
        assert isinstance(define().place.delay("42"), AsyncResult)

    def test_pickles_as_the_task(self, app: Celery) -> None:
        step = define().place

        assert pickle.loads(pickle.dumps(step)).name == "order.place"

    def test_name_needs_no_app(self, new_app: NewApp) -> None:
        app = new_app()
        assert define().place.name == "order.place"
        assert not app.finalized

    @pytest.mark.parametrize("kind", ["starter", "raise"])
    def test_if_missing_function_where_there_is_none(self, app: Celery, kind: str) -> None:
        order = define()

        def missing(missing: Any, order_id: str) -> None: ...

        @order.handles(if_missing="raise")
        def add(order: Any, order_id: str) -> None: ...

        with pytest.raises(DefinitionError):
            {"starter": order.place, "raise": add}[kind].if_missing(missing)
