"""Processes that die at known points, and when others get what they had."""

from pathlib import Path

from tests.integration.worker import Deployment
from tests.waiting import DEADLINE_S, wait_until

#: How kombu's Redis transport gives the messages of a killed worker to others: when, and how often it looks. Seconds.
VISIBILITY = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 0.5,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 1,
}
#: The same where deliveries are counted: longer than a message waits or runs, on a busy machine, too.
UNHURRIED = {**VISIBILITY, "visibility_timeout": 10}
#: There is no queue but the deployment's, and what no broker takes is a dead letter after two attempts.
UNROUTED = {"task_create_missing_queues": False, "saga_max_deliveries": 2}


def points(*stages: str) -> list[str]:
    """Return the points around stages."""
    return [f"{when} {stage}" for stage in stages for when in ("before", "after")]


POINTS = points("find", "commit", "publish", "confirm")


def has_ended(pid: str) -> bool:
    """Whether a process does nothing any more, though its parent may not have looked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("Z", "X"))
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_died(deployment: Deployment, point: str) -> None:
    """Wait for the death at a point: a process that dies at another would take what it has not confirmed with it."""

    def has_died() -> bool:
        killed = [line.split(" ", 1) for line in deployment.noted("killed")]
        return any(where == point and has_ended(pid) for pid, where in killed)

    wait_until(has_died, lambda: f"a death {point}\n{deployment.describe()}", 2 * DEADLINE_S)  # a lease may have to end first
