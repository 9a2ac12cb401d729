"""The metrics of OpenTelemetry."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from celery_sagas import Batch, Saga, aggregator, signals
from celery_sagas.observers import observers
from celery_sagas.telemetry import prometheus
from celery_sagas.telemetry.metrics import measure
from celery_sagas.telemetry.prometheus import PrometheusMetrics
from celery_sagas.telemetry.signalled import unfailing
from celery_sagas.worker.process.relay import open_relay
from celery_sagas.worker.runtime import runtime_of
from tests.apps import Worker


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """Measures this test alone."""
    for signal in (signals.step_failed, signals.batch_flushed):
        monkeypatch.setattr(signal, "receivers", [])
        monkeypatch.setattr(signal, "sender_receivers_cache", {}, raising=False)
    before, observers[:] = list(observers), []
    read = InMemoryMetricReader()
    provider = MeterProvider([read])
    measure(provider)
    measure(provider)
    yield read
    observers[:] = before
    provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[tuple[Any, ...], int]:
    """Return the numbers of measurements, by metric and labels."""
    data = reader.get_metrics_data()
    assert data is not None
    found = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
    return {
        (metric.name, *point.attributes.values()): getattr(point, "count", None) or getattr(point, "value", 0)
        for metric in found
        for point in metric.data.data_points
    }


def test_everything_is_measured(reader: InMemoryMetricReader, app: Celery, worker: Worker) -> None:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(note.si(1))

    @Order.starts
    def refuse(order: Order, order_id: str) -> None:
        raise ValueError(order_id)

    @Order.handles
    def pay(order: Order, order_id: str) -> None: ...

    @aggregator(size=1)
    def meters(batch: Batch[int]) -> None: ...

    @app.task(name="note")
    def note(number: int) -> None: ...

    app.tasks["order.place"].delay("a")
    app.tasks["order.refuse"].delay("b")
    app.tasks["order.pay"].delay("a")
    app.tasks[meters.name].delay(1)
    worker.run()
    runtime = runtime_of(app)
    runtime.services.dispatcher.confirmations.settle()
    open_relay(runtime).sweep()
    found = points(reader)

    assert found["saga.step.duration", "order", "order.place", "started"] == 1
    assert found["saga.step.duration", "order", "order.pay", "handled"] == 1
    assert found["saga.step.duration", "order", "order.refuse", "raised"] == 1
    assert found["saga.dead_letters", "order.refuse"] == 1
    assert found["saga.aggregator.flushed", meters.name] == found["saga.aggregator.flushed.items", meters.name] == 1
    assert found["saga.outbox.published", "confirmed"] >= 1
    assert found["saga.relay.lag", runtime.backend.url] == 1


def test_metrics_that_cannot_be_written_fail_no_message(app: Celery, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they count is committed already."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    def fail(*labels: str) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(prometheus, "_duration", fail)
    before, observers[:] = list(observers), [PrometheusMetrics()]
    try:
        for number in range(2):
            app.tasks["order.place"].delay(str(number))
        assert [delivered.fate for delivered in worker.run()] == ["acked", "acked"]
    finally:
        observers[:] = before
    assert runtime_of(app).backend.dead.count() == 0


def test_time_limit_of_a_task_is_not_swallowed(caplog: pytest.LogCaptureFixture) -> None:
    """Other errors are said once."""

    class Observer:
        @unfailing
        def handled(self, error: Exception) -> None:
            raise error

    observer = Observer()
    with pytest.raises(SoftTimeLimitExceeded):
        observer.handled(SoftTimeLimitExceeded())
    for _ in range(2):
        observer.handled(OSError("the disk is full"))
    assert [record.message[:23] for record in caplog.records] == ["metrics are incomplete "]
