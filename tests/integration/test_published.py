"""Events between processes and services: one that has imported no step publishes, another waits for what comes of it."""

from typing import Any

import pytest

from celery_sagas.worker.events import PUBLISH
from celery_sagas.worker.headers import PUBLICATION
from tests.integration.conftest import Deploy
from tests.integration.test_requests import BROKERS
from tests.integration.worker import APPS, Deployment, Worker
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture(params=BROKERS)
def services(request: pytest.FixtureRequest, deploy: Deploy) -> tuple[Deployment, Deployment]:
    """A service that sells, and one that bills, each with a queue and a backend of its own on one broker."""
    broker = str(request.param)
    billing = deploy("billing", broker, "postgresql", **BROKERS[broker])
    subscribers = [{"task": task, "queue": billing.name} for task in ("bill.order_placed", "on_order")]
    subscriptions = {"happenings.Placed": subscribers}
    return deploy("selling", broker, "redis", saga_subscriptions=subscriptions, **BROKERS[broker]), billing


def told(services: tuple[Deployment, Deployment], order_id: str) -> list[int]:
    """Return how often each service was told of an order: the selling saga, the billing one, and their plain tasks, by id."""
    selling, billing = services
    states: list[dict[str, Any]] = [selling.state("sale", order_id) or {}, billing.state("bill", order_id) or {}]
    plainly = [*map(set, (billing.noted("told"), selling.noted("tallied")))]
    counts = [len([line for line in lines if line.startswith(f"{order_id} ")]) for lines in plainly]
    return [*(state.get("told", 0) for state in states), *counts]


def wait_told(services: tuple[Deployment, Deployment], order_id: str, times: int) -> None:
    """Wait until each subscriber was told of an order."""
    wait_until(
        lambda: told(services, order_id) == [times] * 4,
        lambda: f"{told(services, order_id)}\n{services[0].describe()}\n{services[1].describe()}",
    )


def start(services: tuple[Deployment, Deployment]) -> tuple[Worker, Worker]:
    """Start a worker of each service."""
    selling, billing = (service.start("prefork", 1).wait_ready() for service in services)
    return selling, billing


def test_each_subscriber_is_told_once(services: tuple[Deployment, Deployment]) -> None:
    """However often the event is delivered; who publishes again publishes another one."""
    event = services[0].script(APPS / "publishing.py", "42").strip()
    selling, billing = start(services)
    wait_told(services, "42", 1)

    services[0].client.send_task(PUBLISH, ("happenings.Placed", {"order_id": "42"}), task_id=event)
    selling.wait_logged("duplicate: sale '42'")
    billing.wait_logged("duplicate: bill '42'")
    assert told(services, "42") == [1, 1, 1, 1]

    assert services[0].script(APPS / "publishing.py", "42").strip() != event
    wait_told(services, "42", 2)


def test_plain_task_that_is_delivered_again_publishes_the_same(services: tuple[Deployment, Deployment]) -> None:
    selling, billing = start(services)
    again: dict[str, Any] = {"task_id": "announcement", "headers": {PUBLICATION: "announced once"}, "ignore_result": True}
    for _ in range(2):
        services[0].client.send_task("announce", kwargs={"order_id": "43"}, **again)
    selling.wait_logged("duplicate: sale '43'")
    billing.wait_logged("duplicate: bill '43'")

    wait_told(services, "43", 1)


def test_process_that_waits(services: tuple[Deployment, Deployment]) -> None:
    """For what a worker does that starts after it."""
    selling, _ = services
    waiting = selling.start_script(APPS / "await_sale.py", "44", str(DEADLINE_S))
    waiting.wait_written("it waits")
    selling.start("prefork", 1)

    assert waiting.wait_ended() == 0, waiting.log
    assert waiting.output.splitlines() == ["it waits", "told 1", "ended as completed"]
    assert waiting.log == ""


def test_hundred_subscribers_of_one_event_are_told_once_each(deploy: Deploy) -> None:
    """Although its message comes twice."""
    deployment = deploy("crowd", "rabbitmq", "postgresql")
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    for _ in range(2):
        deployment.send("announcer.announce", order_id="42", task_id="announced")
    wait_until(lambda: _told(deployment) == [1] * 100, deployment.describe)
    wait_until(lambda: deployment.queued() + deployment.backend.outbox.count() == 0, deployment.describe)
    assert (_told(deployment), deployment.handled("announcer.announce"), deployment.failures()) == ([1] * 100, 1, [])


def _told(deployment: Deployment) -> list[int]:
    states = [deployment.state(f"follower{number}", "42") for number in range(100)]
    return [state["told"] if state else 0 for state in states]
