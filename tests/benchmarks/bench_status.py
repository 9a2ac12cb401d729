"""The time of a step that says when it runs, against one that always runs: worker code, engine and store, in this process."""

import statistics
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests import servers
from tests.benchmarks.conftest import Report

#: Of each step in turn, and how often; the first ones are not counted.
BLOCK, BLOCKS, WARM = 200, 200, 10
#: How much longer a step may take that looks at the status. Seconds.
MOST_S = 2e-6


class Lamp(Saga, correlate_by="name", status_by="status"):
    """A lamp."""

    name: str
    status: Literal["off", "on"] = "on"
    value: int = 0


@Lamp.starts
def switch(lamp: Lamp, name: str) -> None:
    """Begin."""


@Lamp.handles
def always(lamp: Lamp, name: str) -> None:
    """Count."""
    lamp.value += 1


@Lamp.handles(when="on")
def when(lamp: Lamp, name: str) -> None:
    """Count."""
    lamp.value += 1


@Lamp.handles(when="on", if_not="ignore")
def ignoring(lamp: Lamp, name: str) -> None:
    """Count."""
    lamp.value += 1


@Lamp.handles(when=lambda lamp, name: lamp.status == "on", if_not="ignore")
def asking(lamp: Lamp, name: str) -> None:
    """Count."""
    lamp.value += 1


@Lamp.handles(when="on", if_not="defer")
def deferring(lamp: Lamp, name: str) -> None:
    """Count."""
    lamp.value += 1


@pytest.fixture
def lamps() -> Iterator[Celery]:
    """An app with a lamp."""
    app = Celery(servers.unique("app"), broker="memory://", set_as_current=True)
    app.conf.saga_backend = f"memory://{servers.unique()}"
    runtime_of(app).prepare(processes=1)
    switch(name="1")
    yield app
    close_runtime(app)


def test_a_step_that_looks_at_the_status(report: Report, lamps: Celery) -> None:
    steps = ("always", "when", "ignoring", "asking", "deferring")
    times: dict[str, list[float]] = {name: [] for name in steps}
    for block in range(BLOCKS):
        for name in steps if block % 2 else steps[::-1]:
            times[name].append(_median_s(lamps.tasks[f"lamp.{name}"]))
    plain = times["always"][WARM:]
    for name in steps[1:]:
        more_s = statistics.median(more - less for more, less in zip(times[name][WARM:], plain, strict=True))
        figure = f"{more_s * 1e6:.2f} µs more  (than {statistics.median(plain) * 1e6:.1f})"
        report(f"a step with when=, {name}, against one without", figure, f"<= {MOST_S * 1e6:.0f} µs", more_s <= MOST_S)


def _median_s(task: Any) -> float:
    """Return the time of the median one of so many calls. Seconds."""
    times = []
    for _ in range(BLOCK):
        began = time.perf_counter()
        task(name="1")
        times.append(time.perf_counter() - began)
    return statistics.median(times)
