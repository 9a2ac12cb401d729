"""Gathers that are stopped, with real workers: what no worker has taken by then is not done."""

import pytest

from tests.integration.conftest import Deploy
from tests.integration.deaths import UNHURRIED
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

PLACES, PROCESSES, MULTIPLIER = 500, 2, 4
#: What a worker takes before it has done anything of it: none of that is revoked any more.
TAKEN = PROCESSES * MULTIPLIER


def deployed(deploy: Deploy, broker: str) -> tuple[Deployment, Worker]:
    """Deploy a saga that hunts, and a worker of its own for the places; return that, too."""
    server = broker.removeprefix("sagas-")
    settings = {} if server == "rabbitmq" else {"broker_transport_options": UNHURRIED}
    engine = "postgresql" if server == "rabbitmq" else "redis"
    deployment = deploy("stopping", server, engine, worker_prefetch_multiplier=MULTIPLIER, **settings)
    if server != broker:
        deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    deployment.settings["worker_enable_remote_control"] = True
    queue = deployment.route("place.*")
    deployment.start("prefork", 1).wait_ready()
    return deployment, deployment.start("prefork", PROCESSES, queue=queue).wait_ready()


def knows_all(deployment: Deployment, worker: Worker) -> bool:
    """Return whether a worker knows that the places are revoked."""
    name = f"{worker.name}@localhost"
    told = deployment.client.control.inspect([name]).revoked() or {}
    return len(told.get(name, ())) >= PLACES


@pytest.mark.parametrize("broker", ["rabbitmq", "redis", "sagas-redis"])
@pytest.mark.timeout(300)
def test_places_that_nobody_has_looked_at_are_left_alone(deploy: Deploy, broker: str) -> None:
    """The hunt is called off while the first ones are being looked at."""
    deployment, worker = deployed(deploy, broker)
    deployment.send("hunt.begin", name="a", places=PLACES)
    wait_until(lambda: len(deployment.noted("looks")) == PROCESSES, deployment.describe)
    deployment.send("hunt.call_off", name="a")
    wait_until(lambda: (deployment.state("hunt", "a") or {}).get("is_off"), deployment.describe)
    wait_until(lambda: knows_all(deployment, worker), deployment.describe)
    (deployment.folder / "go").touch()
    deployment.send("hunt.begin", name="b", places=3)
    wait_until(lambda: deployment.outcome("hunt", "b"), deployment.describe)  # it comes after the others in the queue

    looks = deployment.noted("looks")
    assert PROCESSES + 3 <= len(looks) <= TAKEN + 3
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert (deployment.failures(), deployment.backend.dead.list(10)) == ([], [])
