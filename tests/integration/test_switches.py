"""A step that is held, with real workers: its messages wait while others are handled, whichever process is killed."""

import contextlib
import os
import signal

import pytest

from celery_sagas.testing.samples import audited, entry
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, TOLD, increments, send_all, sums, values
from tests.integration.matrices import matrix
from tests.integration.worker import Worker
from tests.waiting import wait_until

#: What is sent before the step is held, and while it is.
PART, COUNTERS = 60, 4


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
def test_messages_of_a_held_step_wait_and_are_handled_once(deploy: Deploy, engine: str, broker: str) -> None:
    """Every process that has begun since knows that it is held: all others are killed."""
    deployment = deploy("counters", broker, engine, saga_dispatch_grace=2)  # of what a killed process had no time to send
    worker, switches = deployment.start("prefork", 2).wait_ready(), deployment.backend.switches
    wanted = increments(2 * PART, counters=COUNTERS)
    send_all(deployment, ADD_AND_TELL, wanted[:PART])
    wait_until(lambda: deployment.handled(TOLD) > 0, deployment.describe)
    assert switches.hold(TOLD, audited(entry(), action="hold"))
    _kill_processes(worker)
    told = deployment.handled(TOLD)
    send_all(deployment, ADD_AND_TELL, wanted[PART:])

    wait_until(lambda: values(deployment, "counter", sums(wanted)) == sums(wanted), deployment.describe)
    assert deployment.handled(TOLD) == told < len(wanted)
    _kill_processes(worker)
    assert switches.release(TOLD, audited(entry(), action="release"))

    wait_until(lambda: values(deployment, "tally", sums(wanted)) == sums(wanted), deployment.describe)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert (deployment.handled(ADD_AND_TELL), deployment.handled(TOLD)) == (len(wanted), len(wanted))
    assert (deployment.failures(), deployment.backend.dead.list(10)) == ([], [])


def _kill_processes(worker: Worker) -> None:
    """Kill the processes of a pool, and wait until others have taken their places."""
    killed = worker.children()
    for pid in killed:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not set(killed) & set(worker.children()), worker.describe)
