"""A step that is held, in a test: its messages come again when the test lets time pass."""

from datetime import timedelta

import pytest

from celery_sagas import Saga
from celery_sagas.errors import StepHeld
from celery_sagas.operate import Operator
from celery_sagas.testing import SagaHarness
from tests.apps import NewApp


def test_messages_wait_until_it_is_released(new_app: NewApp) -> None:
    app = new_app()

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    with SagaHarness(app) as harness:
        ann = Operator(app, "ann")
        ann.hold(place, "the bank is closed")
        with pytest.raises(StepHeld):
            place("7")
        place.delay("42")
        harness.advance(timedelta(minutes=5))
        assert Order.find("42") is None
        ann.release(place, "it is open")
        harness.advance(timedelta(minutes=1))
        assert Order.find("42") is not None
