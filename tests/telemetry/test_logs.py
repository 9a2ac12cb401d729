"""What a log record says of the step for which it was written."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from celery import Celery, signals

from celery_sagas import Saga
from celery_sagas.telemetry import logs
from celery_sagas.telemetry.logs import SagaFilter, add_saga_context, saga_context
from tests.apps import Worker

NOTHING = dict.fromkeys(("saga", "saga_step", "saga_instance", "saga_message"), "-")


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(added := SagaFilter())
    yield caplog
    caplog.handler.removeFilter(added)


@pytest.fixture
def order(app: Celery) -> Any:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> str:
        logging.getLogger("shop").info("placing")
        return str(order.saga.id)

    @Order.starts
    def refuse(order: Order, order_id: str) -> None:
        raise ValueError(order_id)

    return Order


def about(record: logging.LogRecord) -> dict[str, str]:
    return {name: record.__dict__[name] for name in NOTHING}


def test_record_says_which_step_runs(order: Any, app: Celery, worker: Worker, logged: pytest.LogCaptureFixture) -> None:
    """Whoever logs, and after the handler, too; then the instance is not said."""
    message_id = app.tasks["order.place"].delay("a").id
    worker.run()
    (placing,) = [record for record in logged.records if record.message == "placing"]
    instance = about(placing)["saga_instance"]
    assert about(placing) == {"saga": "order", "saga_step": "order.place", "saga_instance": instance, "saga_message": message_id}
    assert any(instance in record.getMessage() for record in logged.records if "succeeded" in record.getMessage())

    app.tasks["order.refuse"].delay("b")
    worker.run()
    kept = [record for record in logged.records if "dead letter" in record.message]
    assert {(about(record)["saga_step"], about(record)["saga_instance"]) for record in kept} == {("order.refuse", "-")}


def test_outside_of_a_step_nothing_is_said(app: Celery, logged: pytest.LogCaptureFixture) -> None:
    logging.getLogger("shop").info("starting")
    assert about(logged.records[0]) == saga_context() == NOTHING


def test_what_a_record_has_is_left_alone() -> None:
    record = logging.makeLogRecord({"saga": "mine"})
    assert SagaFilter().filter(record) is True
    assert (record.__dict__["saga"], record.__dict__["saga_step"]) == ("mine", "-")


def test_events_of_structlog(order: Any, app: Celery) -> None:
    """It is a processor among others."""
    with structlog.testing.capture_logs(processors=[add_saga_context]) as events:
        structlog.get_logger().info("starting", saga="mine")
    assert events == [{**NOTHING, "saga": "mine", "event": "starting", "log_level": "info"}]


def test_handlers_that_celery_sets_up_have_the_filter_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for signal in (signals.after_setup_logger, signals.after_setup_task_logger):
        monkeypatch.setattr(signal, "receivers", [])
    logs.install()
    logs.install()
    logger = logging.Logger("of a worker")
    logger.addHandler(handler := logging.NullHandler())
    signals.after_setup_logger.send(sender=None, logger=logger)
    signals.after_setup_task_logger.send(sender=None, logger=logger)
    assert [type(each) for each in handler.filters] == [SagaFilter]
