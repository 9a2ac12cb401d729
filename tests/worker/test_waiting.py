"""``Saga.wait``: outside every task."""

import threading
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.errors import DefinitionError, MisuseError, SagaNotFound, WaitTimeout
from tests.apps import NewApp, Worker, interposed


@pytest.fixture
def order(app: Celery) -> Any:
    """A saga with a starter, a handler and an end."""

    class Order(Saga, correlate_by="order_id", also_by="tracking"):
        order_id: str
        tracking: str | None = None
        paid: bool = False

    @Order.starts
    def place(order: Order, order_id: str, tracking: str | None = None) -> None:
        order.tracking = tracking

    @Order.handles
    def pay(order: Order, order_id: str) -> None:
        order.paid = True

    @Order.handles
    def finish(order: Order, order_id: str) -> None:
        order.complete()

    Order.place, Order.pay, Order.finish = place, pay, finish  # type: ignore[attr-defined]
    return Order


def is_paid(order: Any) -> bool:
    """Whether an order is as it is waited for."""
    return bool(order.paid)


class TestOutsideATask:
    """Scripts, web handlers and tests."""

    def test_it_returns_the_copy(self, worker: Worker, order: Any) -> None:
        order.place.delay("42", "T1")
        order.pay.delay("42")
        worker.run()

        for found in (
            order.wait("42", until=is_paid, timeout=0),
            order.wait(order_id="42", until=is_paid, timeout=0),
            order.wait(tracking="T1", until=is_paid, timeout=0),
        ):
            assert isinstance(found, order)
            assert (found.order_id, found.saga.version) == ("42", 2)
            with pytest.raises(MisuseError, match="read-only"):
                found.paid = False

    def test_what_a_worker_does_meanwhile_is_seen(self, app: Celery, order: Any) -> None:
        """The messages are handled by another thread, once the first look has seen nothing."""

        def run() -> None:
            app.set_current()
            Worker(app).run()

        order.place.delay("42")
        order.pay.delay("42")
        thread = threading.Thread(target=run)
        interposed(app).once_after("find", thread.start)

        assert order.wait("42", until=is_paid, timeout=60).paid
        thread.join()

    def test_it_returns_the_entry_of_the_completion(self, worker: Worker, order: Any) -> None:
        order.place.delay("42")
        order.finish.delay("42")
        worker.run()

        assert order.wait("42", until="completed", timeout=0) == order.outcome("42")

    def test_time_out(self, order: Any) -> None:
        with pytest.raises(WaitTimeout, match="order_id='42'"):
            order.wait("42", until=is_paid, timeout=0)

    def test_completion_ends_it(self, app: Celery, order: Any) -> None:
        order.place("42")
        interposed(app).once_after("find", lambda: order.finish("42"))

        with pytest.raises(SagaNotFound, match="it has completed"):
            order.wait("42", until=is_paid, timeout=60)

    def test_abstract_saga_has_no_instances(self, definitions: None) -> None:
        with pytest.raises(DefinitionError, match="abstract"):
            Saga.wait("42", until=is_paid, timeout=0)

    def test_plain_task_that_is_called_is_a_function(self, app: Celery, order: Any) -> None:
        @app.task
        def look() -> Any:
            return order.wait("42", until=lambda order: True, timeout=0).order_id

        order.place("42")
        assert look() == "42"

    def test_eager_step_is_handled_before(self, new_app: NewApp) -> None:
        new_app(eager=True)

        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @Order.starts
        def place(order: Order, order_id: str) -> None: ...

        place.delay("42")
        assert Order.wait("42", until=lambda order: True, timeout=0).order_id == "42"


class TestInsideATask:
    """A task that waits for another keeps the worker from it."""

    def test_plain_task(self, app: Celery, worker: Worker, order: Any) -> None:
        @app.task
        def look() -> None:
            order.wait("42", until=is_paid, timeout=0)

        look.delay()
        assert isinstance(worker.one().error, MisuseError)

    @pytest.mark.parametrize("is_called", [True, False])
    def test_step(self, worker: Worker, order: Any, is_called: bool) -> None:
        @order.starts
        def look(state: Any, order_id: str) -> None:
            order.wait("43", until="completed", timeout=0)

        if is_called:
            with pytest.raises(MisuseError, match=r"Order\.wait\(\) was called inside a task"):
                look("42")
        else:
            look.delay("42")
            assert isinstance(worker.one().error, MisuseError)
        assert order.find("42") is None

    def test_eager_task(self, eager: Celery) -> None:
        class Order(Saga, correlate_by="order_id"):
            order_id: str

        @eager.task
        def look() -> None:
            Order.wait("42", until=is_paid, timeout=0)

        with pytest.raises(MisuseError, match="inside a task"):
            look.delay()

    def test_afterwards_it_is_allowed_again(self, app: Celery, worker: Worker, order: Any) -> None:
        order.place.delay("42")
        worker.run()

        assert order.wait("42", until=lambda order: True, timeout=0).order_id == "42"
