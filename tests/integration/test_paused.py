"""Pauses, with real workers: what comes meanwhile waits, and is handled once, whoever is killed."""

import contextlib
import os
import signal

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, increments, send_all, sums, values
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

#: What is sent before, and in each pause.
PART, PAUSES, COUNTERS = 40, 3, 4


@pytest.mark.parametrize(
    ("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis"), ("mariadb", "rabbitmq"), ("sqlite", "redis"))
)
def test_nothing_is_lost_and_nothing_comes_twice(deploy: Deploy, engine: str, broker: str) -> None:
    """Instances are paused and resumed under load, while processes of the pools are killed."""
    deployment = deploy("counters", broker, engine)
    workers = [deployment.start("prefork", 2).wait_ready() for _ in range(2)]
    wanted = increments(PART * (PAUSES + 1), counters=COUNTERS)
    names = list(sums(wanted))
    send_all(deployment, ADD_AND_TELL, wanted[:PART])
    wait_until(lambda: len(values(deployment, "counter", sums(wanted))) == COUNTERS, deployment.describe)
    for number in range(PAUSES):
        for name in names:
            _act(deployment, "pause", name)
        send_all(deployment, ADD_AND_TELL, wanted[(number + 1) * PART : (number + 2) * PART])
        _kill_process(workers[number % 2])
        for name in names:
            _act(deployment, "resume", name)

    def is_over() -> bool:
        return values(deployment, "counter", sums(wanted)) == values(deployment, "tally", sums(wanted)) == sums(wanted)

    wait_until(is_over, deployment.describe)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    for name in names:
        handled = [entry for entry in deployment.history("counter", name) if entry.outcome in ("started", "handled")]
        assert len(handled) == len({entry.message_id for entry in handled}) == sum(each == name for each, _ in wanted)
        acts = [entry.outcome for entry in deployment.history("counter", name)].count("operated")
        assert acts == 2 * PAUSES
    audit = deployment.backend.audit.recent(500, names=["counter"]).entries
    assert len(audit) == 2 * PAUSES * COUNTERS
    assert (deployment.failures(), deployment.backend.dead.list(10)) == ([], [])


def _act(deployment: Deployment, verb: str, name: str) -> None:
    deployment.command("sagas", verb, "counter", name, "--reason", "a test", "--actor", "ann")


def _kill_process(worker: Worker) -> None:
    with contextlib.suppress(ProcessLookupError, IndexError):  # it has just ended
        os.kill(worker.children()[0], signal.SIGKILL)
