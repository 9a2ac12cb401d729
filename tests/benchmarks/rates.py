"""Tasks per second of one round through a real worker."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.benchmarks.conftest import APPS
from tests.integration.counting import increments
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

MESSAGES = 5_000
COUNTERS = 250
ROUNDS = 5
#: Messages that a worker has received beforehand, of tasks and of steps: as the page on speed recommends it.
PREFETCHED = 128


def in_turn(measures: Sequence[Callable[[], float]]) -> list[list[float]]:
    """Measure everything in each round twice, forth and back: a machine that becomes faster or slower favours nobody.

    Returns:
        For each measure the mean rate of each round.
    """
    rates: list[list[float]] = [[] for _ in measures]
    for _ in range(ROUNDS):
        forth = [measure() for measure in measures]
        back = [measure() for measure in reversed(measures)][::-1]
        for all_of_one, pair in zip(rates, zip(forth, back, strict=True), strict=True):
            all_of_one.append(statistics.harmonic_mean(pair))
    return rates


def middle(rates: Sequence[float]) -> int:
    """Return the median, rounded."""
    return round(statistics.median(rates))


def spread(rates: Sequence[float], others: Sequence[float]) -> str:
    """Return the smallest and the largest ratio of a round."""
    ratios = [rate / other for rate, other in zip(rates, others, strict=True)]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of what each round's rate is, as a part of the other's."""
    return statistics.median(rate / other for rate, other in zip(rates, others, strict=True))


def rate(deployment: Deployment, task: str, pool: str, counters: int = COUNTERS, *, processes: int = 2) -> float:
    """Return the tasks per second, from the start of the first one to the end of the last."""
    for name, amount in increments(MESSAGES, counters):
        deployment.send(task, name=name, amount=amount)
    deployment.settings["worker_prefetch_multiplier"] = PREFETCHED // processes
    deployment.paths = [str(APPS)]
    worker = deployment.start(pool, processes, level="WARNING").wait_ready()
    done = times(deployment, worker)
    count = sum(count for _, _, count in done)
    # other brokers do not tell what is prefetched; it is left when the worker ends
    assert MESSAGES - (0 if deployment.broker.startswith("redis") else PREFETCHED) <= count <= MESSAGES
    deployment.purge()
    assert deployment.failures() == []
    return count / (max(last for _, last, _ in done) - min(began for began, _, _ in done))


def times(deployment: Deployment, worker: Worker) -> list[tuple[float, float, int]]:
    """End the worker when everything is done; return when each process began and ended, and how many messages it has handled."""
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe, deadline_s=120)
    assert worker.stop() == 0
    notes = deployment.noted("completed")
    Path(deployment.folder / "completed.notes").unlink()
    return [(float(began), float(last), int(count)) for began, last, count in map(str.split, notes)]
