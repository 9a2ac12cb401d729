"""How long a message takes through workers that have nothing else to do: steps against plain tasks."""

import statistics
import time

import pytest

from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

MESSAGES = 200
#: Between two messages. Seconds.
PAUSE_S = 0.05
#: How much longer a step, and a chain of four, may take at the median. Milliseconds.
TARGETS_MS = {"last": 2.0, "first": 4.0}
WHAT = {"last": "one step", "first": "a chain of four"}


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
@pytest.mark.parametrize("task", TARGETS_MS)
def test_a_message_without_others(deploy: Deploy, report: Report, backend: str, task: str) -> None:
    steps, plain = deploy("chained", "redis", backend), deploy("plain_chained", "redis", "memory://")
    for deployment in (steps, plain):
        deployment.paths = [str(APPS)]
        deployment.start("prefork", 2, level="WARNING").wait_ready()
    for number in range(MESSAGES):
        for deployment, name in ((steps, f"item.{task}"), (plain, f"plain.{task}")):
            deployment.send(name, name=f"item {number}", sent_at=time.time())
            time.sleep(PAUSE_S)
    (step_ms, step_95), (plain_ms, plain_95) = map(_latency_ms, (steps, plain))
    above = step_ms - plain_ms
    report(
        f"{WHAT[task]} without others, {backend}, against plain tasks, p50",
        f"{above:+.1f} ms  ({step_ms:.1f} of {plain_ms:.1f} ms; p95 {step_95:.1f} of {plain_95:.1f})",
        f"<= +{TARGETS_MS[task]:.0f} ms",
        above <= TARGETS_MS[task],
    )


def _latency_ms(deployment: Deployment) -> tuple[float, float]:
    """Return the median, and the 95th percentile."""
    wait_until(lambda: len(deployment.noted("latencies")) == MESSAGES, deployment.describe)
    latencies = [float(line) * 1000 for line in deployment.noted("latencies")][MESSAGES // 10 :]
    return statistics.median(latencies), statistics.quantiles(latencies, n=20)[-1]
