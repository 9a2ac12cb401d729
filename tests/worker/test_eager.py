"""Eager mode: everything at once, after the commit that decided it, and errors as Celery's users expect them."""

from typing import Any

import pytest
from celery import Celery, chain
from celery.exceptions import MaxRetriesExceededError, Retry

from celery_sagas import Saga, publish
from celery_sagas.core.message import Message
from celery_sagas.errors import InvalidMessage, MisuseError, SagaNotFound
from celery_sagas.worker.sessions import current_session
from tests.apps import NewApp, backend_of


class Boom(Exception):
    """What a task raises."""


class Paid(Message):
    """An event."""

    order_id: str


@pytest.fixture
def order(eager: Celery) -> Any:
    """A saga."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str
        receipts: list[str] = []

    @Order.handles
    def charged(order: Order, receipt: str) -> None:
        order.receipts.append(receipt)

    Order.charged = charged  # type: ignore[attr-defined]
    return Order


def test_sends_run_after_the_commit(eager: Celery, order: Any) -> None:
    """They find the instance there."""
    seen: list[Any] = []

    @eager.task
    def look(order_id: str) -> None:
        seen.append((order.find(order_id).saga.version, backend_of(eager).outbox.count()))

    @order.starts
    def place(order: Any, order_id: str) -> None:
        order.send(look.s(order_id))
        assert seen == []

    place.delay("42")

    assert seen == [(1, 0)]


def test_sessions_nest(eager: Celery, order: Any) -> None:
    """A step that a participant of another step sends runs inside both."""

    @eager.task
    def charge() -> None:
        order.charged.delay("by key of the causation")

    @order.starts
    def place(order: Any, order_id: str) -> None:
        order.send(charge.si())
        order.send(charge.si())

    place.delay("42")

    assert order.find("42").receipts == ["by key of the causation"] * 2
    assert current_session() is None


def test_through_chains_and_events(eager: Celery, order: Any) -> None:
    """The causation is handed on without a broker."""

    @eager.task
    def charge() -> str:
        publish(Paid(order_id="42"))
        return "r1"

    @order.handles
    def paid(order: Any, event: Paid) -> None:
        order.receipts.append("event")

    @order.starts
    def place(order: Any, order_id: str) -> None:
        order.send(chain(charge.si(), charged.s()))

    charged = order.charged
    place.delay("42")

    assert order.find("42").receipts == ["event", "r1"]


def test_raw_delay_of_a_step_inside_a_step_is_refused(eager: Celery, order: Any) -> None:
    """It would run now, inside the handler."""

    @order.starts
    def place(state: Any, order_id: str) -> None:
        order.charged.delay("r")

    with pytest.raises(MisuseError, match="send it"):
        place.delay("42")
    assert order.find("42") is None


def test_errors_of_the_handler_pass(order: Any) -> None:
    """With ``task_eager_propagates``."""

    @order.starts
    def place(order: Any, order_id: str) -> None:
        raise Boom

    with pytest.raises(Boom):
        place.delay("42")
    with pytest.raises(InvalidMessage):
        place.delay(None)


def test_errors_of_what_is_sent_pass_after_the_commit(eager: Celery, order: Any) -> None:
    """The step itself is done."""

    @eager.task
    def charge() -> None:
        raise Boom

    @order.starts
    def place(order: Any, order_id: str) -> None:
        order.send(charge.si())

    with pytest.raises(Boom):
        place.delay("42")
    assert order.find("42") is not None
    assert current_session() is None


def test_without_propagation_errors_are_in_the_result(new_app: NewApp) -> None:
    """As of every eager task."""
    app = new_app(eager=True)
    app.conf.task_eager_propagates = False

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @app.task
    def charge() -> None:
        raise Boom

    @Order.starts
    def place(order: Order, order_id: str, fail: bool = False) -> str:
        order.send(charge.si())
        if fail:
            raise Boom
        return "placed"

    assert place.delay("42").get() == "placed"
    assert isinstance(place.delay("43", fail=True).result, Boom)
    assert Order.find("43") is None


def test_retry_runs_again(eager: Celery, order: Any) -> None:
    """Under the same id, with one effect."""
    ids: list[str] = []

    @order.starts(bind=True)
    def place(self: Any, order: Any, order_id: str) -> None:
        ids.append(order.saga.message.id)
        order.receipts.append("run")
        if len(ids) < 3:
            raise self.retry()

    eager.conf.task_eager_propagates = False
    sent = place.delay("42")

    assert ids == [sent.id] * 3
    assert order.find("42").receipts == ["run"]


def test_retries_are_exhausted(eager: Celery, order: Any) -> None:
    """As of every eager task."""
    eager.conf.task_eager_propagates = False

    @order.starts(bind=True, max_retries=1)
    def place(self: Any, order: Any, order_id: str) -> None:
        raise self.retry()

    assert isinstance(place.delay("42").result, (MaxRetriesExceededError, Retry))
    assert order.find("42") is None


def test_missing_raises_at_once(order: Any) -> None:
    """There is nobody to redeliver the message later."""

    @order.handles(if_missing="defer", defer_for=60)
    def cancel(order: Any, order_id: str) -> None: ...

    with pytest.raises(SagaNotFound):
        cancel.delay("42")


def test_apply_is_eager_on_any_app(app: Celery) -> None:
    """What it sends goes to the broker."""

    @app.task(name="plain")
    def plain() -> None: ...

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts(ignore_result=False)
    def place(order: Order, order_id: str) -> str:
        order.send(plain.si())
        return "placed"

    assert place.apply(("42",), task_id="m1").get() == "placed"
    assert place.apply(("42",), task_id="m1").get() is None  # a duplicate
    assert Order.find("42") is not None


def test_headers_of_an_eager_message(order: Any) -> None:
    """They stand in ``request.headers`` alone."""

    @order.starts
    def place(order: Any, order_id: str) -> None: ...

    place.delay("42")
    causation = {"order": order.find("42").saga.id}
    order.charged.apply_async(("r",), headers={"saga_causation": causation})

    assert order.find("42").receipts == ["r"]


def test_headers_of_a_nested_message_go_before_those_around_it(eager: Celery, order: Any) -> None:
    """As a header that is there is never overwritten."""

    @order.starts
    def place(order: Any, order_id: str) -> None: ...

    @eager.task
    def charge(causation: dict[str, str]) -> None:
        order.charged.apply_async(("r",), headers={"saga_causation": causation})

    place("41")
    place("42")
    ids = {key: order.find(key).saga.id for key in ("41", "42")}
    charge.apply_async(({"order": ids["41"]},), headers={"saga_causation": {"order": ids["42"]}})

    assert (order.find("41").receipts, order.find("42").receipts) == (["r"], [])
