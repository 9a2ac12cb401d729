"""How long it takes to ask a step, against waiting for the result of a plain task."""

import json
import statistics
from collections.abc import Sequence

import pytest

from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import Deploy

QUESTIONS = 300
#: How much longer an answer may take at the median. Milliseconds.
TARGET_MS = 20.0


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
def test_a_question_against_the_result_of_a_plain_task(deploy: Deploy, report: Report, backend: str) -> None:
    """In one process, in turn, by one worker; broker and results are in Redis."""
    deployment = deploy("questions", "redis", backend)
    deployment.settings["result_backend"] = deployment.broker
    deployment.paths = [str(APPS)]
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    times = json.loads(deployment.script(APPS / "ask_in_turn.py", str(QUESTIONS)).splitlines()[-1])[QUESTIONS // 10 :]
    (asked_ms, asked_95), (plain_ms, plain_95) = map(_latency_ms, zip(*times, strict=True))
    above = asked_ms - plain_ms
    report(
        f"ask, {backend}, against delay().get() of a plain task, p50",
        f"{above:+.1f} ms  ({asked_ms:.1f} of {plain_ms:.1f} ms; p95 {asked_95:.1f} of {plain_95:.1f})",
        f"<= +{TARGET_MS:.0f} ms",
        above <= TARGET_MS,
    )


def _latency_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median, and the 95th percentile."""
    return statistics.median(seconds) * 1000, statistics.quantiles(seconds, n=20)[-1] * 1000
