"""What comes to many processes at the same time: one message counts once, two starters make one instance."""

import uuid

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.matrices import IS_FULL
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

PROCESSES, ROUNDS = 8, 3
WEIGH, HEAR, REMINDED = "parcel.weigh", "parcel.hear", "parcel.reminded"
SIDES = ("left", "right")
#: So many processes open so many gates; as many at once as both sides of which have a process.
STARTERS, GATES = (16, 500) if IS_FULL else (8, 24)
AT_ONCE = STARTERS // len(SIDES)


@pytest.mark.parametrize(("engine", "broker"), list(zip(ENGINES, ("rabbitmq", "redis", "rabbitmq", "redis"), strict=True)))
def test_one_message_at_once_commits_sends_and_schedules_once(deploy: Deploy, engine: str, broker: str) -> None:
    """In the first round eight processes insert the instance, in the others they update it."""
    deployment = deploy("at_once", broker, engine, saga_relay_interval=0.2, saga_batch=1)  # in a batch, one process has them all
    worker = deployment.start("prefork", PROCESSES).wait_ready()
    for number in range(ROUNDS):
        _deliver_to_each(deployment, worker, number)
    for step in (WEIGH, HEAR, REMINDED):
        deployment.wait_handled(step, ROUNDS)
        assert deployment.handled(step) == ROUNDS
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    wait_until(lambda: deployment.queued() == 0, deployment.describe)
    assert worker.stop() == 0
    rounds = list(range(ROUNDS))
    assert _parcel(deployment, "a") == {"name": "a", "weighed": rounds, "heard": [], "reminded": rounds}
    assert _parcel(deployment, "echo of a")["heard"] == rounds
    assert sorted(deployment.noted("labels")) == [f"a {number}" for number in rounds]
    assert sorted(entry.step for entry in deployment.history("parcel", "a")) == [REMINDED] * ROUNDS + [WEIGH] * ROUNDS
    assert [_received(worker, step) for step in (HEAR, REMINDED)] == [ROUNDS] * 2
    assert deployment.backend.dead.list(10) == []
    assert deployment.failures() == []


def _deliver_to_each(deployment: Deployment, worker: Worker, number: int) -> None:
    """Deliver one message to each process of a pool, and wait until each of them has come to the commit and is done."""
    message_id = str(uuid.uuid4())
    for _ in range(PROCESSES):
        deployment.send(WEIGH, task_id=message_id, name="a", round=number, processes=PROCESSES)
    wait_until(lambda: worker.log.count(f"{WEIGH}[{message_id}] succeeded") == PROCESSES, worker.describe)
    assert len(list((deployment.folder / f"a.{number}").iterdir())) == PROCESSES, "there was no race"


def _parcel(deployment: Deployment, name: str) -> dict[str, object]:
    state = deployment.state("parcel", name)
    assert state is not None
    return {**state, "reminded": sorted(state["reminded"]), "heard": sorted(state["heard"])}


def _received(worker: Worker, step: str) -> int:
    return sum(step in line and line.endswith(" received") for line in worker.log.splitlines())


@pytest.mark.parametrize(("engine", "broker"), list(zip(ENGINES, ("redis", "rabbitmq", "redis", "rabbitmq"), strict=True)))
def test_two_starters_of_one_key_make_one_instance(deploy: Deploy, engine: str, broker: str) -> None:
    """Each is a step of its own; the loser goes on with what the winner has made."""
    deployment = deploy("at_once", broker, engine, saga_batch=1)  # in a batch, one process has both
    # two hash seeds: that of a fresh interpreter is its own
    workers = [deployment.start("prefork", STARTERS // 2, level="WARNING", is_fresh=is_fresh) for is_fresh in (False, True)]
    for worker in workers:
        worker.wait_ready()
    names = [f"gate {number}" for number in range(GATES)]
    for first in range(0, GATES, AT_ONCE):
        for name in names[first : first + AT_ONCE]:
            for side in SIDES:
                deployment.send(f"gate.open_{side}", name=name)
        for side in SIDES:
            deployment.wait_handled(f"gate.open_{side}", min(first + AT_ONCE, GATES))
    for name in names:
        state = deployment.state("gate", name)
        assert state is not None
        assert sorted(state["sides"]) == list(SIDES)
        entries = deployment.history("gate", name)
        assert sorted(entry.outcome for entry in entries) == ["handled", "started"]
        assert len({entry.instance_id for entry in entries}) == 1
    assert deployment.backend.dead.list(10) == []
    assert deployment.failures() == []
    assert len(deployment.noted("starters")) >= GATES * 1.5, "there were no races"
