"""Items per second of a durable aggregator, against celery-batches, which needs Celery below 5.7: ``tox -e bench-batches``."""

import time
from concurrent.futures import ThreadPoolExecutor
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
ITEMS, CHUNK = 6_000, 1_000
#: Items that each producer adds, one by one or in chunks.
ADDED = {1: 3_000, CHUNK: 30_000}
#: A worker has so many processes; and so many producers add one by one, since each of them waits for half of its time.
PROCESSES = 2
#: In how many seconds all producers are ready.
READY_IN_S = 4.0
#: celery-batches cannot flush more than a worker has prefetched.
PREFETCHED = 200
#: Items per second as a part of celery-batches', at least.
DELAYED, ADDED_ONE, ADDED_MANY = 0.90, 5.0, 20.0


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
def test_items_through_the_broker_and_past_it(deploy: Deploy, report: Report, backend: str) -> None:
    ours = deploy("batched", "redis", backend)
    theirs = deploy("unsafely_batched", "redis", "memory://")
    adding = deploy("adding", "redis", backend)
    added = [partial(_added, adding, chunk, producers) for chunk, producers in ((1, 1), (1, PROCESSES), (CHUNK, 1))]
    in_memory, durable, alone, together, many = in_turn([partial(_flushed, theirs), partial(_flushed, ours), *added])
    wanted = [
        ("delay", durable, DELAYED),
        ("add, 1 producer", alone, None),
        (f"add, {PROCESSES} producers", together, ADDED_ONE),
        (f"add_many, {CHUNK:,} each, 1 producer", many, ADDED_MANY),
    ]
    for door, rates, target in wanted:
        reached, aim = ratio(rates, in_memory), target if backend == "redis" else None
        report(
            f"items by {door} against celery-batches, {backend}",
            f"{reached:.2f}  ({middle(rates)} of {middle(in_memory)} /s)",
            "" if aim is None else f">= {aim:.2f}",
            None if aim is None else reached >= aim,
        )


def _flushed(deployment: Deployment) -> float:
    """Return the items per second of a worker, from when it is ready to its last batch."""
    for number in range(ITEMS):
        deployment.client.send_task(COLLECT, args=(number,), ignore_result=True)
    deployment.settings["worker_prefetch_multiplier"] = PREFETCHED // 2
    deployment.paths = [str(APPS)]
    worker = deployment.start("prefork", PROCESSES, level="WARNING").wait_ready()
    wait_until(lambda: sum(count for _, count in _batches(deployment)) >= ITEMS, deployment.describe, deadline_s=120)
    last, _ = _batches(deployment)[-1]
    assert worker.stop() == 0
    Path(deployment.folder / "batches.notes").unlink()
    return ITEMS / (last - worker.ready_at)


def _batches(deployment: Deployment) -> list[tuple[float, int]]:
    """Return when each batch was flushed, and how many items it had."""
    noted = [line.split() for line in deployment.noted("batches")]
    return sorted((float(at), int(count)) for at, count in noted)


def _added(deployment: Deployment, chunk: int, producers: int) -> float:
    """Return the items per second of producers, each in a process of its own."""
    deployment.paths = [str(APPS)]
    arguments = [str(ADDED[chunk]), str(chunk), str(time.monotonic() + READY_IN_S)]
    with ThreadPoolExecutor(producers) as pool:
        running = [pool.submit(deployment.script, APPS / "adding.py", *arguments) for _ in range(producers)]
        times = [[*map(float, each.result().split())] for each in running]
    assert max(began for began, _ in times) < min(ended for _, ended in times)
    return producers * ADDED[chunk] / (max(ended for _, ended in times) - min(began for began, _ in times))
