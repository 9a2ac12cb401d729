"""A database that cannot be reached, or answers no more: messages are redelivered later, none is lost, none counts twice."""

from collections.abc import Callable

import pytest

from celery_sagas.stores.redis.connection.scripts import load
from tests.integration.conftest import Deploy
from tests.integration.counting import ADD, increments, send_all, sums, values
from tests.integration.proxy import Proxy
from tests.integration.worker import Deployment

SERVERS = ("postgresql", "mariadb", "redis")
#: What the commit's request contains, as long as the driver has not prepared it.
COMMIT = {
    "postgresql": (b"INSERT INTO saga_journal",),
    "mariadb": (b"COMMIT",),
    "redis": (load("saga_insert").sha.encode(), load("saga_update").sha.encode()),
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    """A database server's name."""
    return str(request.param)


@pytest.fixture
def proxy(server: str, proxied: Callable[[str], Proxy]) -> Proxy:
    """What stands between the worker and the server."""
    return proxied(server)


@pytest.fixture
def deployment(deploy: Deploy, server: str, proxy: Proxy) -> Deployment:
    """A deployment whose workers go through the proxy, while the test does not."""
    made = deploy("counters", "redis", server)
    made.settings["saga_backend"] = proxy.url
    return made


def test_cut_connections_are_replaced(deployment: Deployment, proxy: Proxy) -> None:
    wanted = increments(300, counters=10)
    deployment.start("prefork", 2).wait_ready()
    send_all(deployment, ADD, wanted)
    for count in (50, 100, 150, 200):
        deployment.wait_handled(ADD, count)
        proxy.cut()
    _assert_exact(deployment, wanted)


def test_messages_are_redelivered_later_while_connections_are_refused(deployment: Deployment, proxy: Proxy) -> None:
    wanted = increments(20, counters=5)
    worker = deployment.start("prefork", 2).wait_ready()
    send_all(deployment, ADD, wanted[:5])
    deployment.wait_handled(ADD, 5)
    proxy.refuse()
    send_all(deployment, ADD, wanted[5:])
    worker.wait_logged("is redelivered in")
    assert deployment.handled(ADD) == 5
    proxy.accept()
    _assert_exact(deployment, wanted)
    assert worker.is_running


def test_a_commit_whose_answer_is_lost_counts_once(deployment: Deployment, server: str, proxy: Proxy) -> None:
    wanted = increments(6, counters=2)
    deployment.start("prefork", 1).wait_ready()
    for message, each in enumerate(wanted):
        if message in (0, 2, 4):  # on a connection that is new, and on ones that have worked
            proxy.swallow(*COMMIT[server])
        send_all(deployment, ADD, [each])
        deployment.wait_handled(ADD, message + 1)
    _assert_exact(deployment, wanted)
    assert proxy.swallowed >= 2


def test_a_silent_server_holds_a_step_no_longer_than_its_time_limit(deployment: Deployment, proxy: Proxy) -> None:
    wanted = increments(10, counters=3)
    worker = deployment.start("prefork", 2).wait_ready()
    send_all(deployment, PATIENT, wanted[:4])
    deployment.wait_handled(PATIENT, 4)
    proxy.silence()
    send_all(deployment, PATIENT, wanted[4:])
    worker.wait_logged("SoftTimeLimitExceeded")
    assert deployment.handled(PATIENT) == 4
    proxy.cut()
    proxy.speak()
    _assert_exact(deployment, wanted, PATIENT)


PATIENT = "counter.add_within_a_second"


def _assert_exact(deployment: Deployment, wanted: list[tuple[str, int]], step: str = ADD) -> None:
    deployment.wait_handled(step, len(wanted))
    assert values(deployment, "counter", sums(wanted)) == sums(wanted)
    assert deployment.handled(step) == len(wanted)
    assert deployment.failures() == []
