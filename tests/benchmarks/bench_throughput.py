"""Steps per second through a real worker, against plain tasks: same options, same messages, same broker."""

from functools import partial

import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.rates import in_turn, middle, rate, ratio
from tests.integration.conftest import Deploy

#: Steps per second as a part of the no-op task's, at least.
TARGETS = {"postgresql": 0.60, "sqlite": 0.65, "mariadb": None, "memory": None}


@pytest.mark.parametrize("backend", TARGETS)
def test_a_step_against_a_task_that_does_nothing(deploy: Deploy, report: Report, backend: str) -> None:
    pool = "threads" if backend == "memory" else "prefork"
    steps = deploy("timed_counters", "redis", "memory://" if backend == "memory" else backend)
    plain = deploy("plain", "redis", "memory://")
    noop, done = in_turn([partial(rate, plain, "plain.add", pool), partial(rate, steps, "counter.add", pool)])
    reached, target = ratio(done, noop), TARGETS[backend]
    report(
        f"step against no-op, {backend}, {pool} 2, Redis broker",
        f"{reached:.2f}  ({middle(done)} of {middle(noop)} /s)",
        "" if target is None else f">= {target:.2f}",
        None if target is None else reached >= target,
    )


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_step_on_redis_against_a_task_that_reads_and_writes(deploy: Deploy, report: Report, pool: str) -> None:
    """Broker and backend are one server, for the hand-written task too."""
    steps = deploy("timed_counters", "redis", "redis")
    plain = deploy("plain", "redis", "memory://")
    tasks = [(plain, "plain.add"), (plain, "plain.count"), (steps, "counter.add")]
    noop, by_hand, done = in_turn([partial(rate, deployment, task, pool) for deployment, task in tasks])
    of_noop, of_hand, are_targets = ratio(done, noop), ratio(done, by_hand), pool == "prefork"
    report(
        f"step against no-op, redis, {pool} 2, same server",
        f"{of_noop:.2f}  ({middle(done)} of {middle(noop)} /s)",
        ">= 0.80" if are_targets else "",
        of_noop >= 0.80 if are_targets else None,
    )
    report(
        f"step against GET and SET by hand, redis, {pool} 2, same server",
        f"{of_hand:.2f}  ({middle(done)} of {middle(by_hand)} /s)",
        ">= 0.90" if are_targets else "",
        of_hand >= 0.90 if are_targets else None,
    )
