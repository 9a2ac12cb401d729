"""Workers and pool processes that end under load, in each way that Celery has: nothing that is half done stays behind."""

import os
import signal

import pytest

from tests.integration.conftest import Deploy
from tests.integration.deaths import UNHURRIED
from tests.integration.ledgers import ALARM, ENTER, HEAR, SOON, Sent, assert_kept, enter, enter_again, keep_busy
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

MESSAGES = 240
REPLACED = 16
WARM, COLD = signal.SIGTERM, signal.SIGQUIT
PLACES = matrix(("sqlite", "rabbitmq"), ("postgresql", "redis"))
WORKERS = [*((*place, "prefork") for place in PLACES), ("postgresql", "redis", "threads"), ("sqlite", "redis", "solo")]
#: By which option the processes of a pool are replaced.
ENDS = {
    "one message": "--max-tasks-per-child=1",
    "memory": "--max-memory-per-child=1",  # kilobytes, which every message exceeds
}


def _deployment(deploy: Deploy, engine: str, broker: str) -> Deployment:
    """Make a deployment; on Redis, what steps send waits for the last worker.

    A worker that ends at once may lose what kombu has popped from Redis and not yet noted, and nobody would repeat that.
    """
    if broker != "redis":
        return deploy("chaos", broker, engine, **SOON)
    deployment = deploy("chaos", broker, engine, **SOON, broker_transport_options=UNHURRIED)
    for step in (HEAR, ALARM):
        deployment.route(step)
    return deployment


@pytest.mark.parametrize(("engine", "broker", "pool"), WORKERS)
def test_workers_that_are_shut_down(deploy: Deploy, engine: str, broker: str, pool: str) -> None:
    """One after the other; the last one does what is left.

    Celery's other pools than prefork cannot end what they run: a cold shutdown ends their worker by an error of its own.
    """
    deployment = _deployment(deploy, engine, broker)
    sent = enter(deployment, range(MESSAGES))
    for shutdown, handled in ((WARM, MESSAGES // 4), (COLD, MESSAGES // 2)):
        worker = deployment.start(pool, 4).wait_ready()
        deployment.wait_handled(ENTER, handled)
        keep_busy(deployment, sent)
        os.kill(worker.pid, shutdown)
        if shutdown is COLD:
            _wait_ended_or_kill(worker)
        else:
            assert worker.wait_ended() == 0, worker.describe()
            assert "Traceback" not in worker.log
    _assert_kept_by_another(deployment, sent, pool)


def _wait_ended_or_kill(worker: Worker) -> None:
    """Do as a supervisor does: Celery may run the cold shutdown in the middle of a job that it writes to a process of its pool.

    Each of them then waits for the other, for half a minute and longer.
    """
    try:
        worker.wait_ended(10)
    except AssertionError:
        worker.kill()


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_handler_that_a_cold_shutdown_interrupts_runs_again(deploy: Deploy, pool: str) -> None:
    """Whatever the handler is interrupted by says nothing about its message, which is no dead letter."""
    deployment = deploy("lingering", "rabbitmq", "sqlite")
    worker = deployment.start(pool, 1).wait_ready()
    deployment.send("guest.visit", name="a")
    wait_until(lambda: deployment.noted("visits") == ["a"], worker.describe)
    os.kill(worker.pid, COLD)
    worker.wait_ended()
    assert deployment.handled("guest.visit") == 0
    (deployment.folder / "go").touch()
    deployment.start(pool, 1)
    deployment.wait_handled("guest.visit", 1)
    assert deployment.state("guest", "a") == {"name": "a", "visits": 1}
    assert deployment.backend.dead.list(10) == []
    assert deployment.failures() == []


@pytest.mark.parametrize(
    ("engine", "broker", "why"), [*((*place, "one message") for place in PLACES), ("sqlite", "rabbitmq", "memory")]
)
def test_processes_that_are_replaced(deploy: Deploy, engine: str, broker: str, why: str) -> None:
    """The last worker keeps its processes: one that was to be replaced may end before Celery has read what it has done."""
    deployment = _deployment(deploy, engine, broker)
    worker = deployment.start("prefork", 4, ENDS[why]).wait_ready()
    first = set(worker.children())
    sent = enter(deployment, range(REPLACED))
    deployment.wait_handled(ENTER, REPLACED)
    wait_until(lambda: first.isdisjoint(worker.children()), worker.describe)
    assert worker.stop() == 0
    _assert_kept_by_another(deployment, sent, "prefork")


@pytest.mark.parametrize(("engine", "broker"), PLACES)
def test_a_pool_that_grows_and_shrinks(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = _deployment(deploy, engine, broker)
    worker = deployment.start("prefork", 4, "--autoscale=4,1", AUTOSCALE_KEEPALIVE="0.1").wait_ready()
    sent: Sent = {}
    for share in range(3):
        sent |= enter(deployment, range(share * MESSAGES // 3, (share + 1) * MESSAGES // 3))
        wait_until(lambda: len(worker.children()) > 1, worker.describe)
        deployment.wait_handled(ENTER, len(sent))
        wait_until(lambda: len(worker.children()) == 1, worker.describe)
    assert worker.stop() == 0
    _assert_kept_by_another(deployment, sent, "prefork")


def _assert_kept_by_another(deployment: Deployment, sent: Sent, pool: str) -> None:
    """Assert that another worker comes to the end of everything, and redelivers nothing later any more."""
    handed_back = deployment.queued()
    worker = deployment.start(pool, 4, queue=",".join(deployment.queues)).wait_ready()
    if deployment.broker.startswith("redis"):
        enter_again(deployment, sent)
    assert_kept(deployment, sent)
    deployment.wait_idle(worker, handed_back)
    assert worker.stop() == 0
    assert deployment.queued() == 0  # nor did it hold anything back
    assert deployment.backend.outbox.count() == 0
