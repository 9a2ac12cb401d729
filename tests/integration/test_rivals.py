"""Processes that do the same at the same time."""

import uuid

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import TOLD
from tests.integration.worker import wait_until

PROCESSES = 8
RACES = 50


@pytest.mark.parametrize(("engine", "broker"), list(zip(ENGINES, ("redis", "rabbitmq", "redis"), strict=True)))
def test_one_message_delivered_to_eight_processes_has_one_effect(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("counters", broker, engine)
    worker = deployment.start("prefork", PROCESSES).wait_ready()
    names = [f"counter {number}" for number in range(3)]
    for name in names:
        message_id = str(uuid.uuid4())
        for _ in range(PROCESSES):
            deployment.send("counter.add_together", task_id=message_id, name=name, amount=7, processes=PROCESSES)
        wait_until(lambda name=name: worker.log.count(f"add_together[{message_id}] succeeded") == PROCESSES, worker._describe)  # noqa: B023
    deployment.wait_handled(TOLD, len(names))
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    for name in names:
        assert len(list((deployment.folder / f"{name}.together").iterdir())) == PROCESSES  # or there was no race
        assert deployment.state("counter", name) == {"name": name, "value": 7, "count": 1}
        assert deployment.state("tally", name) == {"name": name, "value": 7, "count": 1}
        assert len(deployment.history("counter", name)) == 1
    assert deployment.failures() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_starters_of_one_key_make_one_instance(deploy: Deploy, engine: str) -> None:
    deployment = deploy("counters", "redis", engine)
    deployment.start("prefork", 4).wait_ready()
    names = [f"counter {number}" for number in range(RACES)]
    for name in names:
        for _ in range(4):
            deployment.send("counter.start_together", name=name)
    deployment.wait_handled("counter.start_together", 4 * RACES)
    for name in names:
        state = deployment.state("counter", name)
        assert state is not None
        assert state["count"] == 4
        outcomes = sorted(entry.outcome for entry in deployment.history("counter", name))
        assert outcomes == ["handled", "handled", "handled", "started"]
    assert deployment.failures() == []
    assert len(deployment.noted("starters")) >= RACES * 1.5  # or there were no races
