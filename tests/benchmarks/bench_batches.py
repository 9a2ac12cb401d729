"""Items per second of a durable aggregator, against celery-batches, which needs Celery below 5.7: ``tox -e bench-batches``."""

import time
from functools import partial
from pathlib import Path

import pytest

from tests.benchmarks.conftest import APPS, Report
from tests.benchmarks.rates import in_turn, middle, ratio
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

pytest.importorskip("celery_batches", reason="it needs Celery below 5.7: run tox -e bench-batches")

COLLECT = "batched.collect"
ITEMS, ADDED, CHUNK = 6_000, 3_000, 1_000
#: celery-batches cannot flush more than a worker has prefetched.
PREFETCHED = 200
#: Items per second as a part of celery-batches', at least.
DELAYED, ADDED_ONE, ADDED_MANY = 0.90, 5.0, 20.0


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
def test_items_through_the_broker_and_past_it(deploy: Deploy, report: Report, backend: str) -> None:
    ours = deploy("batched", "redis", backend)
    theirs = deploy("unsafely_batched", "redis", "memory://")
    adding = deploy("adding", "redis", backend)
    measures = [partial(_flushed, theirs), partial(_flushed, ours), partial(_added, adding, 1), partial(_added, adding, CHUNK)]
    in_memory, durable, one, many = in_turn(measures)
    wanted = [("delay", durable, DELAYED), ("add", one, ADDED_ONE), (f"add_many, {CHUNK:,} each", many, ADDED_MANY)]
    for door, rates, target in wanted:
        reached, is_target = ratio(rates, in_memory), backend == "redis"
        report(
            f"items by {door} against celery-batches, {backend}",
            f"{reached:.2f}  ({middle(rates)} of {middle(in_memory)} /s)",
            f">= {target:.2f}" if is_target else "",
            reached >= target if is_target else None,
        )


def _flushed(deployment: Deployment) -> float:
    """Return the items per second of a worker, from when it is ready to its last batch."""
    for number in range(ITEMS):
        deployment.client.send_task(COLLECT, args=(number,), ignore_result=True)
    deployment.settings["worker_prefetch_multiplier"] = PREFETCHED // 2
    deployment.paths = [str(APPS)]
    worker = deployment.start("prefork", 2, level="WARNING").wait_ready()
    wait_until(lambda: sum(count for _, count in _batches(deployment)) >= ITEMS, deployment.describe, deadline_s=120)
    last, _ = _batches(deployment)[-1]
    assert worker.stop() == 0
    Path(deployment.folder / "batches.notes").unlink()
    return ITEMS / (last - worker.ready_at)


def _batches(deployment: Deployment) -> list[tuple[float, int]]:
    """Return when each batch was flushed, and how many items it had."""
    noted = [line.split() for line in deployment.noted("batches")]
    return sorted((float(at), int(count)) for at, count in noted)


def _added(deployment: Deployment, chunk: int) -> float:
    """Return the items per second of one producer, in a process of its own."""
    deployment.paths = [str(APPS)]
    began = time.monotonic()
    seconds = float(deployment.script(APPS / "adding.py", str(ADDED * (1 if chunk == 1 else 10)), str(chunk)))
    assert seconds <= time.monotonic() - began
    return ADDED * (1 if chunk == 1 else 10) / seconds
