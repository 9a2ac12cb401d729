"""Pools whose processes come and go while they work: none of them takes anything with it."""

from importlib.util import find_spec

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, assert_conserved, increments, send_all
from tests.integration.deaths import VISIBILITY
from tests.integration.worker import Deployment
from tests.waiting import wait_until

MESSAGES = 80


@pytest.mark.parametrize(("engine", "broker"), [("postgresql", "rabbitmq"), ("redis", "redis")])
def test_pool_that_grows_loses_and_doubles_nothing(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("counters", broker, engine)
    worker = deployment.start("prefork", 1, "--autoscale", "4,1").wait_ready()
    wanted = _send(deployment, MESSAGES)
    worker.wait_logged("Scaling up")
    assert_conserved(deployment, wanted)


def test_processes_that_end_for_their_memory_lose_and_double_nothing(deploy: Deploy) -> None:
    """Each task is the last of its process."""
    deployment = deploy("counters", "rabbitmq", "postgresql")
    worker = deployment.start("prefork", 2, "--max-memory-per-child", "1").wait_ready()  # KiB: less than any process has
    before = set(worker.children())
    wanted = _send(deployment, 10)
    assert_conserved(deployment, wanted)
    wait_until(lambda: worker.children() and not before & set(worker.children()), worker.describe)


@pytest.mark.skipif(not find_spec("gevent"), reason="no gevent")
@pytest.mark.parametrize(("engine", "broker"), [("postgresql", "rabbitmq"), ("redis", "redis")])
def test_greenlets_lose_and_double_nothing(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("counters", broker, engine)
    worker = deployment.start("gevent", 20).wait_ready()
    wanted = _send(deployment, MESSAGES)
    assert_conserved(deployment, wanted)
    assert worker.stop() == 0


def test_pool_that_is_restarted_loses_nothing(deploy: Deploy) -> None:
    """By remote control, in the middle of its work: messages come all the while, and when the new processes are there."""
    settings = {"worker_enable_remote_control": True, "worker_pool_restarts": True}
    deployment = deploy("counters", "rabbitmq", "postgresql", **settings)
    worker = deployment.start("prefork", 2).wait_ready()
    before = set(worker.children())
    wanted = _send(deployment, MESSAGES)
    deployment.wait_handled(ADD_AND_TELL, 10)
    deployment.client.control.broadcast("pool_restart", destination=[f"{worker.name}@localhost"])

    def is_restarted() -> bool:
        children = set(worker.children())
        wanted.extend(_send(deployment, 10))
        return bool(children) and not before & children

    wait_until(is_restarted, worker.describe)
    assert_conserved(deployment, wanted)


def test_step_that_outlasts_the_visibility_timeout_has_one_effect(deploy: Deploy) -> None:
    """Redis gives its message to another worker: it runs there too, and one of the two commits."""
    settings = {"broker_transport_options": {**VISIBILITY, "visibility_timeout": 1}}
    deployment = deploy("lingering", "redis", "postgresql", **settings)
    workers = [deployment.start("prefork", 1).wait_ready() for _ in range(2)]
    message_id = deployment.send("guest.visit", name="a")
    wait_until(lambda: len(deployment.noted("visits")) == 2, deployment.describe)
    (deployment.folder / "go").touch()
    wait_until(lambda: any(f"{message_id}] duplicate" in worker.log for worker in workers), deployment.describe)
    wait_until(lambda: deployment.queued() + deployment.unacknowledged() == 0, deployment.describe)
    assert deployment.state("guest", "a") == {"name": "a", "visits": 1}
    assert (deployment.handled("guest.visit"), deployment.failures()) == (1, [])


def _send(deployment: Deployment, messages: int) -> list[tuple[str, int]]:
    wanted = increments(messages, counters=10)
    send_all(deployment, ADD_AND_TELL, wanted)
    return wanted
