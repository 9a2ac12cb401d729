"""Eight processes on a hundred instances."""

import pytest

from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import ADD, increments, send_all, sums, values

INCREMENTS = 5_000
COUNTERS = 100


@pytest.mark.parametrize("engine", ENGINES)
def test_eight_processes(deploy: Deploy, report: Report, engine: str) -> None:
    deployment = deploy("timed_counters", "redis", engine)
    deployment.paths = [str(APPS)]
    wanted = increments(INCREMENTS, COUNTERS)
    send_all(deployment, ADD, wanted)
    worker = deployment.start("prefork", 8, level="WARNING").wait_ready()
    deployment.wait_handled(ADD, INCREMENTS, deadline_s=300)
    is_exact = values(deployment, "counter", sums(wanted)) == sums(wanted) and deployment.handled(ADD) == INCREMENTS
    assert worker.stop() == 0
    done = [line.split() for line in deployment.noted("completed")]
    seconds = max(float(last) for _, last, _ in done) - min(float(began) for began, _, _ in done)
    failed = len(deployment.failures())
    report(
        f"8 processes, {COUNTERS} instances, {INCREMENTS} increments, {engine}",
        f"{INCREMENTS / seconds:.0f} /s, {'exact' if is_exact else 'WRONG'}, {failed} failed",
        "exact, none failed",
        is_exact and not failed,
    )
