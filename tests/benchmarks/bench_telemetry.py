"""What metrics add to a step: with them against without, in turn, in one process."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.observers import observers
from celery_sagas.worker.runtime import runtime_of
from tests import redis_servers
from tests.apps import definitions, new_app  # noqa: F401
from tests.benchmarks.conftest import Report

#: Steps in a row, and how often they run with and without metrics, in turn; the first time warms up.
STEPS, BLOCKS = 300, 40
TARGETS = {"prometheus": 1.08, "prometheus, prefork": 1.08, "opentelemetry": 1.08}


@pytest.mark.parametrize("kind", TARGETS)
def test_a_step_with_metrics(report: Report, new_app: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """On Redis, where a step takes the least time: the steps are called, so that no broker's time is counted."""
    with redis_servers.running() as server, tempfile.TemporaryDirectory() as folder:
        app = new_app()
        app.conf.saga_backend = server.url
        measured = _measured(kind, Path(folder), monkeypatch)
        place = _step(app)
        blocks: list[tuple[float, float]] = []
        for number in range(BLOCKS + 1):
            order = [False, True] if number % 2 else [True, False]
            times = {is_on: _block(place, number, measured, is_on) for is_on in order}
            blocks.append((times[False], times[True]))
    without, with_ = (statistics.median(times) * 1e6 for times in zip(*blocks[1:], strict=True))
    ratio = statistics.median(on / off for off, on in blocks[1:])
    report(
        f"step with metrics against without, {kind}",
        f"{ratio:.3f}  ({with_:.0f} against {without:.0f} µs)",
        f"<= {TARGETS[kind]}",
        ratio <= TARGETS[kind],
    )


def _step(app: Celery) -> Any:
    class Order(Saga, correlate_by="order_id"):
        order_id: str
        count: int = 0

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.count += 1

    runtime_of(app).prepare(processes=1)
    return place


def _measured(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what observes, as ``saga_metrics`` or ``measure`` has it."""
    before = list(observers)
    if kind == "opentelemetry":
        metrics = import_module("opentelemetry.sdk.metrics")
        reader = import_module("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
        import_module("celery_sagas.telemetry.metrics").measure(metrics.MeterProvider([reader]))
    else:
        if kind == "prometheus, prefork":
            monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
            values = import_module("prometheus_client.values")
            monkeypatch.setattr(values, "ValueClass", values.MultiProcessValue())  # as if it were imported now
        counters = import_module("celery_sagas.telemetry.prometheus")
        counters._duration.cache_clear()
        counters.STEPS._metrics.clear()
        counters.count()
    (measured,) = [each for each in observers if each not in before]
    observers[:] = before
    return measured


@contextmanager
def _observing(measured: Any, is_on: bool) -> Iterator[None]:
    observers[:] = [measured] * is_on
    try:
        yield
    finally:
        observers.clear()


def _block(place: Any, number: int, measured: Any, is_on: bool) -> float:
    times = []
    with _observing(measured, is_on):
        for step in range(STEPS):
            began = time.perf_counter()
            place(f"{number}-{step % 10}")
            times.append(time.perf_counter() - began)
    return statistics.median(times)
