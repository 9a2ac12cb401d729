"""A broker that cannot be reached when a step publishes: the step succeeds, and what it sends waits in the outbox."""

import re
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD, ADD_AND_TELL, TOLD, assert_conserved, increments, send_all
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import ALARM, ENTER, HEAR, SOON, Sent, assert_kept, enter, enter_again
from tests.integration.proxy import Proxy
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

#: The lease of the rows that a commit writes. Seconds.
GRACE = 3.0


def _deployment(deploy: Deploy, broker: str, proxy: Proxy, **settings: Any) -> Deployment:
    """Return a deployment whose workers consume directly and publish through the proxy, also what a step sends to a step."""
    deployment = deploy("counters", broker, "sqlite", saga_dispatch_grace=GRACE, saga_hand_over=0, **settings)
    deployment.settings["broker_read_url"] = deployment.broker
    deployment.settings["broker_write_url"] = proxy.url
    return deployment


@pytest.mark.parametrize("how", ["refuse", "silence"])
@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_what_a_step_sends_waits_for_the_relay(deploy: Deploy, proxied: Callable[[str], Proxy], broker: str, how: str) -> None:
    proxy = proxied(broker)
    deployment = _deployment(deploy, broker, proxy)
    worker, _ = _send_while_away(deployment, proxy, how)
    worker.wait_logged("the relay could not go on")
    _bring_back(proxy, how)
    deployment.wait_handled(TOLD, 2)
    worker.wait_logged("the relay works again")
    _assert_told(deployment)
    assert deployment.handled(ADD_AND_TELL) == 2


def test_what_a_step_sends_waits_for_a_repeat(deploy: Deploy, proxied: Callable[[str], Proxy]) -> None:
    """Where no relay runs."""
    proxy = proxied("rabbitmq")
    deployment = _deployment(deploy, "rabbitmq", proxy, saga_relay=False)
    worker, message_id = _send_while_away(deployment, proxy, "refuse")
    _bring_back(proxy, "refuse")
    _redeliver_until_told(deployment, worker, message_id)
    _assert_told(deployment)
    assert deployment.handled(ADD_AND_TELL) == 2


def _send_while_away(deployment: Deployment, proxy: Proxy, how: str) -> tuple[Worker, str]:
    """Have a step send something while the broker is away; return its worker, and its message's id."""
    worker = deployment.start("prefork", 1).wait_ready()
    deployment.send(ADD_AND_TELL, name="a", amount=1)
    wait_until(lambda: _is_told(deployment), deployment.describe)  # the publisher is connected
    getattr(proxy, how)()
    message_id = deployment.send(ADD_AND_TELL, task_id=str(uuid.uuid4()), name="a", amount=2)
    worker.wait_logged(f"add_and_tell[{message_id}] succeeded")
    assert deployment.state("counter", "a") == {"name": "a", "value": 3, "count": 2}
    assert deployment.backend.outbox.count() == 1
    return worker, message_id


def _is_told(deployment: Deployment) -> bool:
    """Tell whether what the first message sends has come; where no relay runs, this is one."""
    if not deployment.settings.get("saga_relay", True):
        deployment.relay()
    return deployment.handled(TOLD) == 1 and deployment.backend.outbox.count() == 0


def _bring_back(proxy: Proxy, how: str) -> None:
    if how == "refuse":
        proxy.accept()
    else:
        proxy.cut()
        proxy.speak()


def _assert_told(deployment: Deployment) -> None:
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert deployment.state("tally", "a") == {"name": "a", "value": 3, "count": 2}
    assert deployment.failures() == []


def _redeliver_until_told(deployment: Deployment, worker: Worker, message_id: str) -> None:
    """Deliver a message again; once the lease of what it left has ended, that is published."""
    attempts = 0

    def told() -> bool:
        nonlocal attempts
        if worker.log.count(f"add_and_tell[{message_id}] succeeded") == attempts + 1:
            attempts += 1
            deployment.send(ADD_AND_TELL, task_id=message_id, name="a", amount=2)
        return deployment.handled(TOLD) == 2 and deployment.backend.outbox.count() == 0

    wait_until(told, deployment.describe)


def test_message_that_cannot_be_redelivered_later_stays_with_the_broker(deploy: Deploy, proxied: Callable[[str], Proxy]) -> None:
    """The store and the broker are away at the same time."""
    broker, store = proxied("rabbitmq"), proxied("postgresql")
    deployment = deploy("counters", "rabbitmq", "postgresql")
    deployment.settings["broker_read_url"] = deployment.broker
    deployment.settings["broker_write_url"] = broker.url
    deployment.settings["saga_backend"] = store.url
    worker = deployment.start("prefork", 1).wait_ready()
    store.refuse()
    broker.refuse()
    deployment.send(ADD, name="a", amount=1)
    worker.wait_logged("could not be published again, the broker keeps it")
    store.accept()
    deployment.wait_handled(ADD, 1)
    assert deployment.state("counter", "a") == {"name": "a", "value": 1, "count": 1}
    assert deployment.failures() == []


#: Messages under whose load confirms, or acknowledgements, are lost.
LOAD = 60


def test_confirms_that_are_lost(deploy: Deploy, proxied: Callable[[str], Proxy]) -> None:
    """What has arrived, and was not confirmed, is published again by the relay, and counts once."""
    proxy = proxied("rabbitmq")
    deployment = _deployment(deploy, "rabbitmq", proxy)
    worker = deployment.start("prefork", 1).wait_ready()
    wanted = increments(LOAD, counters=6)
    send_all(deployment, ADD_AND_TELL, wanted[:1])
    wait_until(lambda: deployment.handled(ADD_AND_TELL) == 1 and deployment.backend.outbox.count() == 0, worker.describe)
    proxy.lose_confirms()
    send_all(deployment, ADD_AND_TELL, wanted[1:])
    worker.wait_logged(" duplicate: tally ")
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert_conserved(deployment, wanted)
    assert proxy.lost > 0


def test_acknowledgements_that_are_lost(deploy: Deploy, proxied: Callable[[str], Proxy]) -> None:
    """The broker hears nothing of the worker that it delivers to; when their connection ends, it delivers all of that again."""
    proxy = proxied("rabbitmq")
    deployment = deploy("counters", "rabbitmq", "postgresql", worker_prefetch_multiplier=5)
    deployment.settings["broker_read_url"] = proxy.url
    deployment.settings["broker_write_url"] = deployment.broker
    worker = deployment.start("prefork", 2).wait_ready()
    first, *others = wanted = increments(LOAD, counters=6)
    send_all(deployment, ADD_AND_TELL, [first])
    deployment.wait_handled(ADD_AND_TELL, 1)  # Celery's event loop begins with a prefetch count, and waits for the answer
    proxy.deafen()
    send_all(deployment, ADD_AND_TELL, others)
    wait_until(lambda: proxy.lost >= 3, lambda: f"{proxy.lost} lost, {deployment.describe(ADD_AND_TELL)}")
    assert deployment.handled(ADD_AND_TELL) < LOAD, "there was no load"
    proxy.cut()
    assert_conserved(deployment, wanted)
    worker.wait_logged(" duplicate: ")


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_connections_that_are_cut_and_go_silent_under_load(deploy: Deploy, proxied: Callable[[str], Proxy], broker: str) -> None:
    """Those over which a worker consumes, and acknowledges, and those over which it publishes."""
    proxy = proxied(broker)
    settings = {**SOON, "worker_prefetch_multiplier": 0}  # else kombu's Redis notices nothing while it holds what it may
    deployment = deploy(
        "chaos", broker, "postgresql", **settings, broker_transport_options=VISIBILITY if broker == "redis" else {}
    )
    deployment.settings["broker_url"] = proxy.url
    heard, alarmed = deployment.route(HEAR), deployment.route(ALARM)
    worker = deployment.start("prefork", 4).wait_ready()
    children = worker.children()
    sent: Sent = {}
    for share, how in enumerate(["cut", "silence"]):
        sent |= enter(deployment, range(share * LOAD, (share + 1) * LOAD))
        deployment.wait_handled(ENTER, share * LOAD + LOAD // 4)
        before = len(worker.log)
        getattr(proxy, how)()

    def is_noticed() -> bool:
        """Tell whether somebody has given up waiting for the broker, or nothing was left to publish."""
        found = re.search("stays? in the outbox|the relay could not go on", worker.log[before:])
        return found is not None or (deployment.handled(ENTER) == len(sent) and deployment.backend.outbox.count() == 0)

    wait_until(is_noticed, worker.describe)
    proxy.speak()
    del deployment.settings["broker_url"]
    if broker == "redis":
        enter_again(deployment, sent)  # kombu loses what it has popped from Redis and not yet noted
    deployment.start("prefork", 2, queue=f"{heard},{alarmed}").wait_ready()
    assert_kept(deployment, sent)
    assert worker.children() == children
