"""What the app ``batches`` has noted of the runs of its function."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.integration.worker import APPS, Deployment, Worker
from tests.waiting import DEADLINE_S, wait_until

COLLECT = "batches.collect"


@dataclass
class Run:
    """One run of the function."""

    id: str
    pid: int  #: of the process that ran it
    reason: str
    group: str
    numbers: list[int]
    outcomes: set[str] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """Whether the function has returned."""
        return "end" in self.outcomes


def runs(deployment: Deployment) -> list[Run]:
    """Return the runs in the order in which they began."""
    found: dict[str, Run] = {}
    for line in deployment.noted("batches"):
        what, id, *rest = line.split(" ", 4)
        if what != "begin":
            found[id].outcomes.add(what)
            continue
        group, _, numbers = rest[2].rpartition(" ")
        found[id] = Run(id, int(rest[0]), rest[1], group, [int(number) for number in numbers.split(",") if number])
    return list(found.values())


def seen(deployment: Deployment) -> set[int]:
    """Return the numbers that runs which have ended were given."""
    return {number for run in runs(deployment) if run.has_ended for number in run.numbers}


def buffered(deployment: Deployment, group: str | None = None) -> int:
    """Count the items that are in the buffer."""
    return deployment.backend.buffers.count(COLLECT, group).buffered


def wait_flushed(deployment: Deployment, numbers: set[int], deadline_s: float = DEADLINE_S) -> None:
    """Wait until each number was in a batch that succeeded, and nothing is left in the buffer."""

    def missing() -> int:
        return len(numbers - seen(deployment)) + buffered(deployment)

    wait_until(lambda: not missing(), lambda: f"{missing()} left of {len(numbers)}: {deployment.describe()}", deadline_s)


class Producer:
    """A producer, in a process of its own: it produces what it is told, one part after the other."""

    def __init__(self, deployment: Deployment, door: str, groups: int) -> None:
        self._deployment = deployment
        self._process: Worker = deployment.start_script(APPS / "producing.py", door, str(groups))

    def tell(self, numbers: range, seconds: float = 0.0) -> None:
        """Have it produce these numbers, spread over a time."""
        self._process.tell(f"{numbers.start} {numbers.stop} {seconds}")

    def wait_begun(self, numbers: range) -> None:
        """Wait until it has produced the first of these numbers."""
        wait_until(lambda: str(numbers.start) in self._deployment.noted("begun"), self._deployment.describe)

    def wait_ended(self, deadline_s: float) -> None:
        """Wait until it has produced all that it was told."""
        self._process.tell_end()
        assert self._process.wait_ended(deadline_s) == 0, self._process.log


def assert_sound(deployment: Deployment, size: int, dead: set[int]) -> None:
    """Assert that no batch was empty or too large, and that what came twice was not removed when its process died.

    Nor may the store have removed it where it said that it has not: on a machine that stands still leases end.

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
    again = {number: each for number, each in of_number.items() if not all(may_come_again(run, dead) for run in each[:-1])}
    assert not again, dict(list(again.items())[:3])


def came(deployment: Deployment) -> dict[int, int]:
    """Return how often each number came, but for runs whose items the store has refused to remove."""
    return Counter(number for run in runs(deployment) if not may_come_again(run, set()) for number in run.numbers)


def may_come_again(run: Run, dead: set[int]) -> bool:
    """Tell whether a run's items were not removed, and why not: its process has died meanwhile, or the store refused."""
    return "removed" not in run.outcomes and (run.pid in dead or "refused" in run.outcomes)
