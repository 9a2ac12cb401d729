"""The life of an order, end to end: every broker, backend and pool, each in several company."""

import pytest

from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ORDERS = 12


@pytest.mark.parametrize(
    ("broker", "backend", "pool"),
    [
        ("filesystem", "sqlite", "prefork"),
        ("filesystem", "postgresql", "threads"),
        ("filesystem", "mariadb", "solo"),
        ("redis", "sqlite", "solo"),
        ("redis", "postgresql", "threads"),
        ("redis", "mariadb", "prefork"),
        ("rabbitmq", "sqlite", "threads"),  # not solo, in which Celery waits for up to ten seconds before it acknowledges
        ("rabbitmq", "postgresql", "prefork"),
        ("rabbitmq", "mariadb", "threads"),
        ("filesystem", "redis", "solo"),
        ("redis", "redis", "prefork"),
        ("rabbitmq", "redis", "threads"),
        ("redis", "redis_cluster", "prefork"),
    ],
)
def test_orders_come_to_their_ends(deploy: Deploy, broker: str, backend: str, pool: str) -> None:
    deployment = deploy("shop", broker, backend)
    deployment.start(pool).wait_ready()
    keys = [f"order {number}" for number in range(ORDERS)]
    for key in keys:
        for _ in range(2):  # the second click changes nothing
            deployment.send("order.place_order", order_id=key, total="9.99")
    deployment.wait_handled("order.place_order", 2 * ORDERS)  # one of an order that has ended would place it anew
    for number, key in enumerate(keys):
        deployment.send("order.pay", order_id=key, card="declined" if number % 4 == 0 else "good")
    for key in keys:
        wait_until(lambda key=key: deployment.outcome("order", key), lambda key=key: f"end of {key}\n{deployment.describe()}")
    for number, key in enumerate(keys):
        assert _life(deployment, key) == (DECLINED if number % 4 == 0 else DELIVERED)
        assert deployment.state("order", key) is None
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    assert deployment.failures() == []


#: The steps, in order.
DECLINED = ["place_order", "pay", "card_declined"]
DELIVERED = ["place_order", "pay", "card_charged", "shipped", "parcel_delivered"]


def _life(deployment: Deployment, key: str) -> list[str]:
    entries = deployment.history("order", key)
    return [entry.step.removeprefix("order.") for entry in entries if entry.outcome != "ignored"]
