"""Increments that are known beforehand, so that sums can be compared with them."""

import random
from collections import Counter
from collections.abc import Iterator

from tests.integration.worker import Deployment
from tests.waiting import wait_until

ADD = "counter.add"
ADD_AND_TELL = "counter.add_and_tell"
FINISH = "counter.finish"
TOLD = "tally.told"


def increments(count: int, counters: int, seed: int = 0) -> list[tuple[str, int]]:
    """Return the names of counters and what is to be added to each."""
    chance = random.Random(seed)
    return [(f"counter {number % counters}", chance.randint(1, 1_000)) for number in range(count)]


def sums(wanted: list[tuple[str, int]]) -> dict[str, int]:
    """Return what each counter must come to."""
    total: Counter[str] = Counter()
    for name, amount in wanted:
        total[name] += amount
    return dict(total)


def send_all(deployment: Deployment, step: str, wanted: list[tuple[str, int]]) -> list[str]:
    """Send the increments; return the messages' ids."""
    return [deployment.send(step, name=name, amount=amount) for name, amount in wanted]


def values(deployment: Deployment, saga: str, names: Iterator[str] | dict[str, int]) -> dict[str, int]:
    """Return the stored values."""
    states = {name: deployment.state(saga, name) for name in names}
    for name, state in states.items():
        assert state is None or state["name"] == name  # nobody else's answer
    return {name: state["value"] for name, state in states.items() if state is not None}


def assert_conserved(deployment: Deployment, wanted: list[tuple[str, int]], step: str = ADD_AND_TELL) -> None:
    """Assert that every increment was counted once, and that every tally heard of each once."""
    deployment.wait_handled(step, len(wanted))
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.handled(step) == len(wanted)
    assert_told(deployment, wanted)


def assert_told(deployment: Deployment, wanted: list[tuple[str, int]]) -> None:
    """Assert that every tally heard of each increment once, and that nothing failed."""
    assert_tallied(deployment, wanted)
    assert deployment.failures() == []


def assert_tallied(deployment: Deployment, wanted: list[tuple[str, int]]) -> None:
    """Assert that every tally heard of each increment once.

    What workers had no time to publish, or to confirm, is in the outbox: it is published here as a relay does.
    """
    wait_until(lambda: _settled(deployment, len(wanted)), lambda: f"every tally told\n{deployment.describe(TOLD)}")
    deployment.relay()
    deployment.wait_handled(TOLD, len(wanted))
    wait_until(lambda: deployment.queued() == 0, "an empty queue")
    tallied = values(deployment, "tally", sums(wanted))
    assert tallied == sums(wanted), _journals(
        deployment, {name for name, total in sums(wanted).items() if tallied.get(name) != total}
    )
    assert deployment.handled(TOLD) == len(wanted)


def _journals(deployment: Deployment, tallies: set[str]) -> str:
    """Return what tallies have heard, and what has failed, for a failed test."""
    entries = [entry for name in tallies for entry in deployment.history("tally", name)]
    lines = [f"{entry.key}, version {entry.version}: {entry.outcome} {entry.step}[{entry.message_id}]" for entry in entries]
    dead = [f"{dead_letter.step}[{dead_letter.message_id}]: {dead_letter}" for dead_letter in deployment.backend.dead.list(10)]
    return "\n".join([*lines, *dead, deployment.describe(TOLD)])


def _settled(deployment: Deployment, decided: int) -> bool:
    """Whether every decided message was received, or waits in the outbox, or (not confirmed) both."""
    return deployment.handled(TOLD) + deployment.backend.outbox.count() >= decided and deployment.queued() == 0
