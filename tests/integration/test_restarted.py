"""Servers that are killed, or stopped, and started again under load: the workers live on, and nothing is lost or doubled."""

import pytest

from tests.integration.conftest import Deploy
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import ALARM, ENTER, HEAR, SOON, Sent, assert_kept, enter, enter_again, keep_busy
from tests.integration.restarting import Server, server
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

__all__ = ["server"]

#: Before each end of the server.
MESSAGES = 150


@pytest.mark.parametrize(("server", "broker"), [("postgresql", "rabbitmq"), ("redis", "redis")], indirect=["server"])
def test_a_store_that_is_restarted(server: Server, deploy: Deploy, broker: str) -> None:
    deployment = deploy("chaos", broker, server.url, **SOON)
    worker = deployment.start("prefork", 4).wait_ready()
    children = worker.children()
    sent: Sent = {}
    _restart_twice(deployment, worker, server, sent, "is unavailable")
    assert_kept(deployment, sent)
    _assert_lives_on(deployment, worker, children)


@pytest.mark.parametrize("server", ["rabbitmq"], indirect=True)
def test_a_rabbitmq_that_is_restarted(server: Server, deploy: Deploy) -> None:
    deployment = deploy("chaos", server.url, "postgresql", **SOON)
    deployment.client.conf.broker_transport_options = {"confirm_publish": True}  # what is sent here is on its disk
    worker = deployment.start("prefork", 4).wait_ready()
    children = worker.children()
    sent: Sent = {}
    _restart_twice(deployment, worker, server, sent, "Connection to broker lost")
    assert_kept(deployment, sent)
    _assert_lives_on(deployment, worker, children)


@pytest.mark.parametrize("server", ["redis"], indirect=True)
def test_a_redis_that_is_restarted_as_broker(server: Server, deploy: Deploy) -> None:
    # kombu does not look at its connection while as many messages are unacknowledged as may be, and without a server they remain
    # that: the worker would neither notice, nor take another message once the server is back
    without_limit = {"worker_prefetch_multiplier": 0, "broker_transport_options": VISIBILITY}
    deployment = deploy("chaos", server.url, "sqlite", **without_limit, **SOON)
    heard, alarmed = deployment.route(HEAR), deployment.route(ALARM)
    worker = deployment.start("prefork", 4).wait_ready()
    children = worker.children()
    sent: Sent = {}
    _restart_twice(deployment, worker, server, sent, "Connection to broker lost")
    # kombu pops a message from a list, and notes it as not acknowledged with another command: what it has popped when the
    # server goes away between the two is lost. So the producer repeats everything under its ids, and what the steps send
    # comes to queues that nobody reads until the server stays
    enter_again(deployment, sent)
    deployment.start("prefork", 2, queue=f"{heard},{alarmed}").wait_ready()
    assert_kept(deployment, sent)
    _assert_lives_on(deployment, worker, children)


def _restart_twice(deployment: Deployment, worker: Worker, server: Server, sent: Sent, noticed: str) -> None:
    """Kill the server and start it again, then stop it in good order and start it again, each time under load."""
    for end in (server.kill, server.stop):
        begun = deployment.handled(ENTER)
        sent.update(enter(deployment, range(len(sent), len(sent) + MESSAGES)))
        deployment.wait_handled(ENTER, begun + MESSAGES // 3)  # the worker is connected, again
        keep_busy(deployment, sent)
        seen = len(worker.log)
        end()
        wait_until(lambda seen=seen: noticed in worker.log[seen:], lambda: f"{worker.describe()}\n{server.log[-4_000:]}")
        server.start()


def _assert_lives_on(deployment: Deployment, worker: Worker, children: list[int]) -> None:
    """Assert that the worker and its pool are the same processes, which hold nothing back when they end."""
    assert worker.is_running
    assert worker.children() == children
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, "empty queues")  # of repeats, too
    for each in deployment.workers:
        assert each.stop() == 0
    assert deployment.queued() == 0
