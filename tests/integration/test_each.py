"""``celery sagas each`` as a process, and Ctrl-C in the middle."""

import json
import os
import signal

import pytest

from celery_sagas.testing.samples import start
from tests.integration.conftest import Deploy
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

COUNTERS, BEFORE = 300, 100
EACH = ("sagas", "each", "pause", "counter", "--expect", str(COUNTERS), "--reason", "INC-881", "--actor", "ann")


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "redis"), ("redis", "redis")))
def test_ctrl_c_leaves_the_rest_to_the_next_time(deploy: Deploy, engine: str, broker: str) -> None:
    """It ends after the one at hand, and the same command goes on: each instance is acted on once."""
    deployment = deploy("operated", broker, engine)
    deployment.prepare()
    keys = {str(number) for number in range(COUNTERS)}
    for key in sorted(keys):
        start(deployment.backend, key, names=("counter",), data=json.dumps({"name": key}))
    command = deployment.start_command(*EACH, CELERY_SAGAS_TEST_ACTS=str(BEFORE))
    wait_until(lambda: deployment.noted("acts") or not command.is_running, deployment.describe)
    assert len(paused(deployment)) == BEFORE
    os.kill(command.pid, signal.SIGINT)
    (deployment.folder / "go").touch()
    assert command.wait_ended() == 1, command.describe()
    assert command.output.count(" is paused: ") == len(paused(deployment)) == BEFORE
    assert f"{BEFORE} done, 0 with nothing to be done, 0 failed." in command.log
    assert f"Stopped after {BEFORE} of {COUNTERS}.\nRun it again with --batch " in command.log
    assert "Traceback" not in command.log
    output = deployment.command(*EACH)
    assert output.count(" is paused: ") == COUNTERS - BEFORE
    assert output.count(" has paused it already: ") == BEFORE
    assert sorted(paused(deployment)) == sorted(keys)


def paused(deployment: Deployment) -> list[str]:
    """Return the keys of what was paused, by the audit, once for each time."""
    entries = deployment.backend.audit.recent(500, names=["counter"]).entries
    assert {(entry.actor, entry.action, entry.reason) for entry in entries} == {("ann", "pause", "INC-881")}
    return [entry.key for entry in entries]
