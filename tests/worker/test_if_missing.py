"""The function of a saga for missing instances, wherever sagas are kept."""

from typing import Any

import pytest
from celery import Celery

from celery_sagas import Missing, Saga
from celery_sagas.errors import SagaNotFound
from tests.apps import Worker, backend_of
from tests.every_store import stored_app, url
from tests.worker.requests.trips import app, on_every_store

__all__ = ["app", "stored_app", "url"]

pytestmark = on_every_store


class Boom(Exception):
    """Raised by a function."""


@pytest.fixture
def seen() -> list[Any]:
    """What the function has received."""
    return []


@pytest.fixture
def order(app: Celery, seen: list[Any]) -> Any:
    """A saga with a function for all of its steps, and with steps that have something else."""

    class Base(Saga):
        count: int = 0

    @Base.if_missing
    def ask(missing: Missing) -> None:
        seen.append((missing.saga, missing.step, missing.property, missing.value, dict(missing.arguments), missing.completed))
        missing.send(note.si(missing.value))
        if missing.arguments.get("amount") == -1:
            raise Boom

    class Order(Base, correlate_by="order_id"):
        order_id: str
        noted: list[str] = []

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.count += 1

    @Order.handles
    def pay(order: Order, order_id: str, amount: int = 5) -> None:
        order.count += amount

    @Order.handles(if_missing="raise")
    def refuse(order: Order, order_id: str) -> None:
        order.count += 10

    @Order.handles
    def own(order: Order, order_id: str) -> None:
        order.complete()

    @own.if_missing
    def ask_own(missing: Missing, order_id: str) -> None:
        seen.append(("own", missing.step, order_id))

    @app.task(name="note")
    def note(key: str) -> None:
        seen.append(key)

    for step in (place, pay, refuse, own):
        setattr(Order, step.name.partition(".")[2], staticmethod(step))
    return Order


def test_missing_instance(worker: Worker, order: Any, seen: list[Any]) -> None:
    """It has the step and its arguments, as the step would get them; what it sends leaves once, also after a repeat."""
    order.pay.delay("42", amount="7")
    (first, sent) = worker.run()
    worker.deliver_again(first)

    assert seen == [("order", "order.pay", "order_id", "42", {"order_id": "42", "amount": 7}, False), "42"]
    assert (sent.task, worker.run()) == ("note", [])
    (entry,) = backend_of(worker.app).journal.history(["order"], "42", 9)
    assert (entry.step, entry.outcome) == ("order.pay", "missing")
    assert order.find("42") is None


def test_instance_that_completed(worker: Worker, order: Any, seen: list[Any]) -> None:
    order.place.delay("42")
    order.own.delay("42")
    order.pay.delay("42")
    worker.run()

    assert seen[0] == ("order", "order.pay", "order_id", "42", {"order_id": "42", "amount": 5}, True)


def test_other_functions_and_policies_come_first(worker: Worker, order: Any, seen: list[Any]) -> None:
    order.own.delay("42")
    order.refuse.delay("42")
    own, refused = worker.run()

    assert (own.error, type(refused.error)) == (None, SagaNotFound)
    assert seen == [("own", "order.own", "42")]


def test_instance_that_exists(worker: Worker, order: Any, seen: list[Any]) -> None:
    order.place.delay("42")
    order.pay.delay("42")
    worker.run()

    assert (order.find("42").count, seen) == (6, [])


def test_nothing_is_left_of_one_that_raises(worker: Worker, order: Any, seen: list[Any]) -> None:
    order.pay.delay("42", amount=-1)
    (failed,) = worker.run()

    assert isinstance(failed.error, Boom)
    assert {each[1] for each in seen} == {"order.pay"}  # a message that fails in a batch runs once more
    (entry,) = backend_of(worker.app).journal.history(["order"], "42", 9)
    assert entry.outcome == "failed"
