"""What a step sends to a step of the same worker is handled where it was committed, and does not travel."""

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, TOLD, assert_conserved, increments, send_all
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until


@pytest.mark.parametrize(("engine", "broker"), matrix(("redis", "redis"), ("postgresql", "rabbitmq")))
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_worker_with_the_options_of_celery_hands_messages_over(deploy: Deploy, engine: str, broker: str, pool: str) -> None:
    """It sends heartbeats, and no events of tasks."""
    deployment = deploy("counters", broker, engine)
    worker = deployment.start(pool, 2, is_quiet=False, CELERY_SAGAS_TEST_PATIENCE="60").wait_ready()
    have_told(deployment, worker, 40)
    assert f"Task {TOLD}[" in worker.log
    assert not any("received" in line for line in worker.log.splitlines() if TOLD in line)


def test_worker_that_sends_events_of_tasks_hands_none_over(deploy: Deploy) -> None:
    deployment = deploy("counters", "redis", "redis")
    worker = deployment.start("prefork", 2, "--task-events", is_quiet=False).wait_ready()
    have_told(deployment, worker, 10)
    assert sum("received" in line for line in worker.log.splitlines() if TOLD in line) == 10


def have_told(deployment: Deployment, worker: Worker, count: int) -> None:
    """Have a worker handle so many messages, and what they tell, and end."""
    wanted = increments(count, counters=5)
    send_all(deployment, ADD_AND_TELL, wanted)
    deployment.wait_handled(TOLD, count)
    wait_until(lambda: deployment.backend.outbox.count() == 0, worker.describe)  # else it would be published below
    assert_conserved(deployment, wanted)
    assert worker.stop() == 0
