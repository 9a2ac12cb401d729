"""What a harness says of steps and code that need a database."""

from typing import Any

import pytest
from celery import Celery
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from celery_sagas import Saga, send
from celery_sagas.errors import ConfigurationError
from celery_sagas.testing import SagaHarness, collected


class Rows(list[str]):
    """Stands in for a session."""


def define() -> tuple[Any, Any, Any]:
    """Define a saga with a step that writes."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts(transaction=Session)
    def place(order: Order, session: Any, order_id: str) -> None:
        session.append(order_id)
        order.send(look.si(order_id=order_id))

    @Order.starts
    def look(order: Order, order_id: str) -> None: ...

    return Order, place, look


def test_step_that_needs_a_database(app: Celery) -> None:
    order, place, look = define()
    with SagaHarness(app) as harness:
        harness.send(look, order_id="1")
        harness.run()
        assert order.find("1") is not None
        with pytest.raises(ConfigurationError, match=r"step\.handler"):
            place(order_id="1")


def test_code_that_needs_a_database(app: Celery) -> None:
    _, place, _ = define()
    with SagaHarness(app), Session(create_engine("sqlite://")) as session, pytest.raises(ConfigurationError, match="eager"):
        send(place.si(order_id="1"), using=session)


def test_function_of_a_step(app: Celery) -> None:
    order, place, look = define()
    state, rows = order(order_id="1"), Rows()
    place.handler(state, rows, order_id="1")
    (message,) = collected(state).messages
    assert (rows, message.task) == (["1"], look.name)
