"""Forged messages: no worker ends, and none of them is left, whatever stands in headers, properties and bodies."""

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from kombu import Producer

from tests.integration.conftest import Deploy
from tests.integration.deaths import UNHURRIED
from tests.integration.forging import MARK, Forged, forged
from tests.integration.matrices import IS_FULL
from tests.integration.worker import Deployment
from tests.servers import unique
from tests.waiting import DEADLINE_S, wait_until

#: Each with what only its transport has.
BROKERS: dict[str, dict[str, Any]] = {"rabbitmq": {}, "redis": {"broker_transport_options": UNHURRIED}}
ENGINES = {"rabbitmq": "postgresql", "redis": "redis"}
MESSAGES = 10_000 if IS_FULL else 300
#: How many are published before all of them must have been taken.
BATCH = 500
SEED = 10


def publish_forged(deployment: Deployment, chance: Random, count: int) -> None:
    """Publish forged messages, and after them one that is not."""
    with deployment.client.connection_for_write() as connection, connection.channel() as channel:
        deployment.client.amqp.queues[deployment.name](channel).declare()
        producer = Producer(channel)
        for _ in range(count):
            forged(chance, is_amqp=deployment.broker.startswith("amqp")).publish(producer, deployment.name)


def is_idle(deployment: Deployment) -> bool:
    """Whether the worker has nothing to do."""
    inspect = deployment.client.control.inspect(timeout=DEADLINE_S, limit=1)
    return deployment.queued() == 0 and not any(
        tasks for kind in (inspect.active(), inspect.reserved()) for tasks in kind.values()
    )


def left(deployment: Deployment) -> list[Any]:
    """Return the headers of forged messages that are in the queue, now that nobody has any."""
    taken = []
    with deployment.client.connection_for_read() as connection, connection.SimpleQueue(deployment.name) as queue:
        for _ in range(deployment.queued()):
            taken.append(queue.get(timeout=DEADLINE_S))
            taken[-1].ack()
    return [message.headers for message in taken if MARK in message.headers]


#: What follows a chord's member: over an odd place in the chord Redis raises an error as a result backend.
MEMBER = {"task": "forged.work", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": False}


@pytest.mark.parametrize(
    ("pool", "task", "later_s"),
    [
        *(("prefork", "target.hit", None), ("prefork", "forged.work_late", 0.5)),
        *(("threads", "forged.work_late", None), ("threads", "target.hit", 0.5)),
    ],
)
def test_result_backend_that_fails_over_what_has_expired_ends_no_worker(
    deploy: Deploy, redis_url: str, pool: str, task: str, later_s: float | None
) -> None:
    """Nor does it take a place of the pool for good."""
    deployment = deploy("forged", "rabbitmq", "postgresql", result_backend=redis_url)
    worker = deployment.start(pool, 1).wait_ready()
    now = datetime.now(UTC)
    headers = {"lang": "py", "task": task, "id": unique("forged"), "retries": 0, "group": unique("forged"), "group_index": "abc"}
    headers["expires"] = (now + timedelta(seconds=0.2 if later_s else -60)).isoformat()
    if later_s:
        headers["eta"] = (now + timedelta(seconds=later_s)).isoformat()
    body = json.dumps([["a"], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": MEMBER}])
    with deployment.client.connection_for_write() as connection, connection.channel() as channel:
        deployment.client.amqp.queues[deployment.name](channel).declare()
        Forged(headers, body.encode()).publish(Producer(channel), deployment.name)
    worker.wait_logged("the result backend cannot say so")
    deployment.send("forged.tell_good", name="next")
    wait_until(lambda: deployment.noted("good") or not worker.is_running, deployment.describe)

    assert worker.is_running, deployment.describe()
    assert worker.stop() == 0
    with deployment.client.connection_for_read() as connection, connection.channel() as channel:
        left = channel.basic_get(deployment.name, no_ack=True)  # the next one, perhaps: a worker that ends may not acknowledge it
    assert left is None or left.headers["id"] != headers["id"]


@pytest.mark.parametrize(
    ("broker", "pool"), [("rabbitmq", "prefork"), ("redis", "prefork"), ("rabbitmq", "threads"), ("redis", "solo")]
)
def test_ends_no_worker_and_is_not_left(deploy: Deploy, broker: str, pool: str) -> None:
    # without heartbeats: a busy machine misses one now and then, and loses the broker over that
    settings = {"worker_enable_remote_control": True, "worker_prefetch_multiplier": 8, "broker_heartbeat": 0}
    deployment = deploy("forged", broker, ENGINES[broker], **settings, **BROKERS[broker])
    worker, chance = deployment.start(pool, 2).wait_ready(), Random(SEED)

    for begun in range(0, MESSAGES, BATCH):
        publish_forged(deployment, chance, min(BATCH, MESSAGES - begun))
        deployment.send("forged.tell_good", name=str(begun))
        wait_until(lambda begun=begun: str(begun) in deployment.noted("good") or not worker.is_running, deployment.describe)
        assert worker.is_running, deployment.describe()

    wait_until(lambda: is_idle(deployment), deployment.describe)
    wait_until(lambda: deployment.unacknowledged() == 0, deployment.describe)
    assert worker.log.count("Connected to ") == 1, "it has lost the broker over a message"
    assert worker.stop() == 0
    assert left(deployment) == []
