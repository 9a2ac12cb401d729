"""How workers start, fork and end."""

import pytest

from tests import servers
from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import ADD, ADD_AND_TELL, TOLD, increments, send_all, sums, values
from tests.waiting import wait_until

WORKERS = 10


@pytest.mark.parametrize("engine", ENGINES)
def test_ten_workers_start_at_once_on_an_empty_database(deploy: Deploy, engine: str) -> None:
    if engine == "sqlite":
        _start_ten(deploy, engine)
    else:
        with servers.database(engine) as url:
            _start_ten(deploy, url)


def _start_ten(deploy: Deploy, backend: str) -> None:
    deployment = deploy("counters", "redis", backend)
    workers = [deployment.start("solo", 1) for _ in range(WORKERS)]
    for worker in workers:
        worker.wait_ready()
    wanted = increments(20, counters=4)
    send_all(deployment, ADD, wanted)
    deployment.wait_handled(ADD, len(wanted))
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    for made in deployment.workers:
        made.kill()
    deployment.backend.close()
    deployment.later.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_are_replaced_share_nothing(deploy: Deploy, engine: str) -> None:
    """The parent has connections of its own, to the database and to the broker, when it forks. A batch counts as one task."""
    deployment = deploy("forking", "redis", engine, saga_batch=1)
    worker = deployment.start("prefork", 3, "--max-tasks-per-child", "5").wait_ready()
    wanted = increments(50, counters=10)
    send_all(deployment, ADD_AND_TELL, wanted)
    deployment.wait_handled(TOLD, len(wanted))
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert values(deployment, "counter", {**sums(wanted), "parent": 1}) == {**sums(wanted), "parent": 1}
    assert values(deployment, "tally", sums(wanted)) == sums(wanted)
    assert len(set(deployment.noted("processes"))) >= 2 * len(wanted) / 5
    assert deployment.failures() == []
    assert worker.stop() == 0


def test_settings_of_a_namespace(deploy: Deploy) -> None:
    """As Django's settings are read: everything is under ``CELERY_``."""
    deployment = deploy("namespaced", "redis", "sqlite")
    deployment.start("prefork", 1).wait_ready()
    deployment.send(ADD, name="a", amount=1)
    deployment.wait_handled(ADD, 1)
    assert deployment.state("counter", "a") == {"name": "a", "value": 1, "count": 1}


def test_wrong_settings_of_a_namespace(deploy: Deploy) -> None:
    deployment = deploy("namespaced", "redis", "sqlite", saga_conflict_retries=-1)
    worker = deployment.start("prefork", 1)
    assert worker.wait_ended() != 0
    assert "saga_conflict_retries" in worker.log.rstrip().splitlines()[-1]
