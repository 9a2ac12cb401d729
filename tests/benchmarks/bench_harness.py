"""What tests in virtual time cost: a step against its bare handler, an exploration, and the plugin in each test run."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.testing import SagaHarness
from celery_sagas.testing.exploration import explore
from tests.apps import app, definitions, new_app
from tests.benchmarks.conftest import Report

__all__ = ["app", "definitions", "new_app"]

STEPS, ROUNDS = 2_000, 5
EXAMPLES, MESSAGES = 500, 5
STARTS = 10


@pytest.fixture
def counting(app: Celery) -> Any:
    """A step of a saga."""

    class Counter(Saga, correlate_by="name"):
        name: str
        total: int = 0

    @Counter.starts
    def count(counter: Counter, name: str, by: int) -> None:
        counter.total += by

    return Counter, count


def seconds(work: Callable[[], object]) -> float:
    """Return how long work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def test_steps(counting: Any, report: Report) -> None:
    """A step is delivered, with everything that a worker does for it; its message is sent by Celery's ``delay``."""
    cls, count = counting

    def call() -> None:
        state = cls(name="a")
        for _ in range(STEPS):
            count.handler(state, "a", 1)

    def send() -> None:
        for _ in range(STEPS):
            harness.send(count, "a", 1)

    with SagaHarness() as harness:
        rounds = [(seconds(call), seconds(send), seconds(harness.run)) for _ in range(ROUNDS)]
        assert harness.assert_state(cls, "a").total == STEPS * ROUNDS
    rate = STEPS / statistics.median(run for _, _, run in rounds)
    ratio = statistics.median(bare / run for bare, _, run in rounds)
    report("steps through the harness", f"{rate:,.0f}/s  ({ratio:.2f} of the handler called)", ">= 5,000/s", rate >= 5_000, ratio)
    rate = STEPS / statistics.median(sent + run for _, sent, run in rounds)
    ratio = statistics.median(bare / (sent + run) for bare, sent, run in rounds)
    report("the same, with delay() of each message", f"{rate:,.0f}/s  ({ratio:.2f})", ratio=ratio)


def test_exploration(counting: Any, report: Report) -> None:
    cls, count = counting

    def five_messages(harness: SagaHarness) -> None:
        for by in range(MESSAGES):
            harness.send(count, "a", by)

    def each_counts_once(harness: SagaHarness) -> None:
        state = harness.state(cls, "a")
        assert not state or state.total <= sum(range(MESSAGES))
        assert not harness.is_quiet or (state and state.total == sum(range(MESSAGES)))

    took = seconds(lambda: explore(five_messages, each_counts_once, examples=EXAMPLES))
    report(f"exploration of {EXAMPLES} examples, {MESSAGES} messages", f"{took:.1f} s", "<= 10 s", took <= 10)


def test_plugin(report: Report) -> None:
    script = "import time, pytest; began = time.perf_counter(); import _celery_sagas_pytest; print(time.perf_counter() - began)"
    starts = [float(subprocess.check_output([sys.executable, "-c", script])) * 1000 for _ in range(STARTS)]
    milliseconds = statistics.median(starts)
    report("importing the pytest plugin", f"{milliseconds:.1f} ms", "<= 50 ms", milliseconds <= 50)
