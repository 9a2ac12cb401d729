"""The memory of a worker's processes over many steps."""

import statistics

from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, TOLD, increments, send_all

#: Half of them send a message that the other half handles.
STEPS = 50_000
#: The part of the run that the figures are taken over, at either end: the first is after warm-up.
PART = 0.1


def test_memory_of_a_worker(deploy: Deploy, report: Report) -> None:
    deployment = deploy("timed_counters", "redis", "postgresql")
    deployment.paths = [str(APPS)]
    send_all(deployment, ADD_AND_TELL, increments(STEPS // 2, counters=250))
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    deployment.wait_handled(ADD_AND_TELL, STEPS // 2, deadline_s=600)
    deployment.wait_handled(TOLD, STEPS // 2, deadline_s=600)
    sizes = [int(line) / 1024 for line in deployment.noted("resident")]
    part = round(len(sizes) * PART)
    early, late = statistics.median(sizes[part : 2 * part]), statistics.median(sizes[-part:])
    report(
        f"memory of a pool process over {STEPS} steps, postgresql",
        f"{early:.1f} -> {late:.1f} MiB",
        "within 2 %",
        late <= early * 1.02,
    )
