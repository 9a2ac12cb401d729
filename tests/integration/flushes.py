"""What the app ``batches`` has noted of the runs of its function."""

import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass

from tests.integration.worker import APPS, Deployment
from tests.waiting import wait_until

COLLECT = "batches.collect"


@dataclass
class Run:
    """One run of the function."""

    id: str
    pid: int  #: of the process that ran it
    reason: str
    group: str
    numbers: list[int]
    has_ended: bool = False


def runs(deployment: Deployment) -> list[Run]:
    """Return the runs in the order in which they began."""
    found: dict[str, Run] = {}
    for line in deployment.noted("batches"):
        what, id, *rest = line.split(" ", 4)
        if what == "end":
            found[id].has_ended = True
            continue
        group, _, numbers = rest[2].rpartition(" ")
        found[id] = Run(id, int(rest[0]), rest[1], group, [int(number) for number in numbers.split(",") if number])
    return list(found.values())


def seen(deployment: Deployment) -> set[int]:
    """Return the numbers that runs which have ended were given."""
    return {number for run in runs(deployment) if run.has_ended for number in run.numbers}


def buffered(deployment: Deployment) -> int:
    """Count the items that are in the buffer."""
    return deployment.backend.buffers.count(COLLECT).buffered


def wait_flushed(deployment: Deployment, numbers: set[int], deadline_s: float = 60.0) -> None:
    """Wait until each number was in a batch that succeeded, and nothing is left in the buffer."""

    def missing() -> int:
        return len(numbers - seen(deployment)) + buffered(deployment)

    wait_until(lambda: not missing(), lambda: f"{missing()} left of {len(numbers)}: {deployment.describe()}", deadline_s)


def produce(deployment: Deployment, door: str, numbers: range, groups: int) -> "subprocess.Popen[bytes]":
    """Start a producer, in a process of its own."""
    arguments = [door, str(numbers.start), str(numbers.stop), str(groups)]
    command = [sys.executable, str(APPS / "producing.py"), *arguments]
    return subprocess.Popen(command, env=deployment._environment(), cwd=deployment.folder)


def assert_sound(deployment: Deployment, size: int, dead: set[int]) -> None:
    """Assert that no batch was empty or too large, and that what came twice was in a process that died.

    Args:
        deployment: Where the runs were noted.
        size: Of the largest batch.
        dead: The ids of the processes that were killed.
    """
    begun = runs(deployment)
    assert all(0 < len(run.numbers) <= size for run in begun)
    of_number: dict[int, list[Run]] = defaultdict(list)
    for run in begun:
        for number in run.numbers:
            of_number[number].append(run)
    again = {number: each for number, each in of_number.items() if not {run.pid for run in each[:-1]} <= dead}
    assert not again, dict(list(again.items())[:3])
