"""Steps per second through a real worker, against a plain task that does nothing: same options, same messages, same broker."""

import statistics
from pathlib import Path

import pytest

from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import Deploy
from tests.integration.counting import increments
from tests.integration.worker import Deployment, Worker, wait_until

MESSAGES = 5_000
COUNTERS = 250
ROUNDS = 5

#: Steps per second as a part of the plain task's, at least.
TARGETS = {"postgresql": 0.60, "sqlite": 0.65, "mariadb": None, "memory": None}


@pytest.mark.parametrize("backend", TARGETS)
def test_a_step_against_a_plain_task(deploy: Deploy, report: Report, backend: str) -> None:
    pool = "threads" if backend == "memory" else "prefork"
    steps = deploy("timed_counters", "redis", "memory://" if backend == "memory" else backend)
    plain = deploy("plain", "redis", "memory://")
    rates: dict[str, list[float]] = {"steps": [], "plain": []}
    for _ in range(ROUNDS):
        rates["plain"].append(_rate(plain, "plain.add", pool))
        rates["steps"].append(_rate(steps, "counter.add", pool))
    ratio = statistics.median(step / noop for step, noop in zip(rates["steps"], rates["plain"], strict=True))
    figure = f"{ratio:.2f}  ({_middle(rates['steps'])} of {_middle(rates['plain'])} /s)"
    target = TARGETS[backend]
    report(
        f"step against no-op, {backend}, {pool} 2, Redis broker",
        figure,
        "" if target is None else f">= {target:.2f}",
        None if target is None else ratio >= target,
    )


def _middle(rates: list[float]) -> int:
    return round(statistics.median(rates))


def _rate(deployment: Deployment, task: str, pool: str) -> float:
    """Return the tasks per second of one round, from the first completion to the last."""
    for name, amount in increments(MESSAGES, COUNTERS):
        deployment.send(task, name=name, amount=amount)
    deployment.settings["worker_prefetch_multiplier"] = 4  # Celery's default
    deployment.paths = [str(APPS)]
    worker = deployment.start(pool, 2, level="WARNING").wait_ready()
    done = _times(deployment, worker)
    assert sum(count for _, _, count in done) == MESSAGES
    assert deployment.failures() == []
    return (MESSAGES - 1) / (max(last for _, last, _ in done) - min(first for first, _, _ in done))


def _times(deployment: Deployment, worker: Worker) -> list[tuple[float, float, int]]:
    """End the worker when everything is done."""
    wait_until(lambda: deployment.queued() == 0 and _unacknowledged(deployment) == 0, deployment.describe, deadline_s=120)
    assert worker.stop() == 0
    notes = deployment.noted("completed")
    Path(deployment.folder / "completed.notes").unlink()
    return [(float(first), float(last), int(count)) for first, last, count in map(str.split, notes)]


def _unacknowledged(deployment: Deployment) -> int:
    """Count the messages that kombu's Redis transport has delivered, and that are not done."""
    with deployment.client.connection_for_read() as connection, connection.channel() as channel:
        return int(channel.client.zcard(channel.unacked_index_key))
