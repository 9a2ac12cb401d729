"""Items of four steps, each of which sends the next: how long ten thousand take, and how many steps a second DBOS runs."""

import statistics
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import servers
from tests.benchmarks.conftest import APPS, Report
from tests.benchmarks.rates import PREFETCHED, ROUNDS, in_turn, middle, ratio, spread, times
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment

STEPS = 4
ITEMS = 10_000
#: Seconds that they may take on a machine whose no-op task runs ``USUAL`` times per second; on a slower one in proportion.
MOST_S, USUAL = 60, 1_000
#: Items of a round against DBOS, and its workflows.
FEW, WORKFLOWS = 2_500, 400
#: Steps per second as a part of those of DBOS, at least.
DBOS_TARGET = 3.0
#: How DBOS runs workflows; the fastest counts.
WAYS = ("serial", "threads", "start")


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
@pytest.mark.timeout(1_800)
def test_ten_thousand_items_of_four_steps(deploy: Deploy, report: Report, backend: str) -> None:
    items, plain = deploy("chained", "redis", backend), deploy("plain_chained", "redis", "memory://")
    noop = statistics.median(_rate(plain, "plain.last", ITEMS // 2, 1) for _ in range(3))
    seconds = ITEMS * STEPS / _rate(items, "item.first", ITEMS, STEPS)
    allowed = MOST_S * max(1.0, USUAL / noop)
    report(
        f"{ITEMS:,} items of {STEPS} steps, {backend}, prefork 2, Redis broker",
        f"{seconds:.0f} s  ({ITEMS * STEPS / seconds:.0f} steps/s; a no-op task {noop:.0f} /s)",
        f"<= {allowed:.0f} s",
        seconds <= allowed,
    )


@pytest.mark.skipif(not find_spec("dbos"), reason="no DBOS")
@pytest.mark.timeout(1_800)
def test_items_against_workflows_of_dbos(deploy: Deploy, report: Report) -> None:
    items = deploy("chained", "redis", "postgresql")
    with servers.database("postgresql") as url:
        measures = [partial(_dbos_rate, url, way) for way in WAYS]
        done, *others = in_turn([partial(_rate, items, "item.first", FEW, STEPS), *measures])
    dbos = [max(of_round) for of_round in zip(*others, strict=True)]
    reached = ratio(done, dbos)
    report(
        f"items of {STEPS} steps against DBOS, PostgreSQL, prefork 2, Redis broker",
        f"{reached:.2f}  ({middle(done)} of {middle(dbos)} steps/s; {spread(done, dbos)})",
        f">= {DBOS_TARGET:.2f}",
        reached >= DBOS_TARGET,
        reached,
    )
    assert len(dbos) == ROUNDS


def _rate(deployment: Deployment, task: str, items: int, steps: int) -> float:
    """Return the steps per second, from the start of the first one to the end of the last."""
    for number in range(items):
        deployment.send(task, name=f"{deployment.name} {number}", sent_at=0)
    deployment.settings["worker_prefetch_multiplier"] = PREFETCHED // 2
    deployment.paths = [str(APPS)]
    done = times(deployment, deployment.start("prefork", 2, level="WARNING").wait_ready())
    assert sum(count for _, _, count in done) == items * steps
    assert deployment.failures() == []
    return items * steps / (max(last for _, last, _ in done) - min(began for began, _, _ in done))


def _dbos_rate(url: str, way: str) -> float:
    """Return the steps per second of DBOS."""
    script = [sys.executable, str(Path(__file__).with_name("dbos_chain.py")), url, str(WORKFLOWS), way]
    output = subprocess.run(script, capture_output=True, text=True, check=True, timeout=300).stdout
    seconds = float(output.rpartition("seconds ")[2])
    return WORKFLOWS * STEPS / seconds
