"""Workers that are killed: what a message decided counts once, and is told once, whenever its process died."""

import random
from typing import Any

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.counting import (
    ADD,
    ADD_AND_TELL,
    FINISH,
    TOLD,
    assert_conserved,
    assert_told,
    increments,
    send_all,
    sums,
    values,
)
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: How kombu's Redis transport gives the messages of a killed worker to others: when, and how often it looks. Seconds.
VISIBILITY = {
    "visibility_timeout": 2,
    "unacked_restore_interval": 0.5,
    "unacked_restore_throttle": 1,
    "unacked_mutex_expire": 1,
}
INCREMENTS = 400
KILLS = 3
POINTS = [f"{when} {stage}" for stage in ("find", "commit", "publish", "confirm") for when in ("before", "after")]


@pytest.mark.parametrize(
    ("engine", "broker", "settings"),
    [
        ("sqlite", "redis", {"broker_transport_options": VISIBILITY}),
        ("postgresql", "rabbitmq", {}),
        ("postgresql", "redis", {"broker_transport_options": VISIBILITY}),
        ("mariadb", "rabbitmq", {}),
        ("redis", "rabbitmq", {}),
        ("redis", "redis", {"broker_transport_options": VISIBILITY}),
    ],
)
def test_nothing_is_lost_or_doubled_when_workers_are_killed(
    deploy: Deploy, engine: str, broker: str, settings: dict[str, Any]
) -> None:
    deployment = deploy("counters", broker, engine, **settings)
    told = deployment.route(TOLD)
    wanted = increments(INCREMENTS, counters=20)
    worker = deployment.start("prefork", 4).wait_ready()
    sent = send_all(deployment, ADD_AND_TELL, wanted)
    chance = random.Random(engine)
    for kill in range(1, KILLS + 1):
        deployment.wait_handled(ADD_AND_TELL, kill * INCREMENTS // (KILLS + 2) + chance.randint(0, 40))
        worker.kill()
        worker = deployment.start("prefork", 4).wait_ready()
    # kombu loses what it has popped from Redis and not yet noted, so the sender repeats everything: each message has its id
    for message_id, (name, amount) in zip(sent, wanted, strict=True):
        deployment.send(ADD_AND_TELL, task_id=message_id, name=name, amount=amount)
    deployment.start("prefork", 2, queue=told).wait_ready()
    assert_conserved(deployment, wanted)


def wait_died(deployment: Deployment, point: str) -> None:
    """Wait for the death at a point: a process that dies at another would take what it has not confirmed with it."""
    wait_until((deployment.folder / f"{point}.once").exists, lambda: f"a death {point}\n{deployment.describe()}")


@pytest.mark.parametrize(("engine", "broker"), [*((engine, "rabbitmq") for engine in ENGINES), ("postgresql", "redis")])
def test_nothing_is_lost_or_doubled_wherever_its_process_dies(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("kill_points", broker, engine)
    worker = deployment.start("prefork", len(POINTS)).wait_ready()
    wanted = [(point, amount) for amount in (1, 10) for point in POINTS]
    for point, amount in wanted[: len(POINTS)]:
        deployment.send(ADD_AND_TELL, name=point, amount=amount)
        wait_died(deployment, point)
    send_all(deployment, ADD_AND_TELL, wanted[len(POINTS) :])
    assert_conserved(deployment, wanted)
    assert worker.is_running


@pytest.mark.parametrize("engine", ENGINES)
def test_an_end_is_told_once_wherever_its_process_dies(deploy: Deploy, engine: str) -> None:
    """The repeat finds no instance, and what its commit has sent."""
    deployment = deploy("counters", "rabbitmq", engine)
    wanted = [(point, 7) for point in POINTS]
    worker = deployment.start("prefork", 2).wait_ready()
    send_all(deployment, ADD, wanted)
    deployment.wait_handled(ADD, len(wanted))
    assert worker.stop() == 0
    deployment.app = "kill_points"
    worker = deployment.start("prefork", len(POINTS)).wait_ready()
    for point in POINTS:
        deployment.send(FINISH, name=point)
        wait_died(deployment, point)
    deployment.wait_handled(FINISH, len(wanted))
    assert_told(deployment, wanted)
    assert deployment.handled(FINISH) == len(wanted)
    assert values(deployment, "counter", sums(wanted)) == {}
    assert worker.is_running


def test_redelivery_publishes_what_a_dead_process_left(deploy: Deploy) -> None:
    """There is no relay here: the repeat of the message waits until the lease of the dead has ended."""
    deployment = deploy("kill_points", "rabbitmq", "postgresql", saga_dispatch_grace=2, saga_relay=False)
    deployment.start("prefork", len(POINTS)).wait_ready()
    wanted = [(point, 1) for point in POINTS]
    send_all(deployment, ADD_AND_TELL, wanted)
    deployment.wait_handled(TOLD, len(wanted))
    deployment.relay()  # rows that were published, and that their process had no time to remove: everybody drops the repeats
    wait_until(lambda: deployment.queued() == 0 and deployment.backend.outbox.count() == 0, deployment.describe)
    assert values(deployment, "tally", sums(wanted)) == sums(wanted)
    assert deployment.handled(TOLD) == len(wanted)


RELAY_POINTS = [f"{when} {stage}" for stage in ("claim", "publish", "confirm") for when in ("before", "after")]


@pytest.mark.parametrize(("engine", "broker"), [("postgresql", "redis"), ("redis", "redis"), ("postgresql", "rabbitmq")])
def test_no_timeout_is_lost_or_doubled_wherever_the_relay_dies(deploy: Deploy, engine: str, broker: str) -> None:
    """One relay after the other dies; what it had claimed is sent when its lease has ended."""
    deployment = deploy("deadly_relay", broker, engine, saga_relay=False, saga_lease_ttl=1, saga_relay_interval=0.1)
    deployment.start("prefork", 2).wait_ready()
    for point in RELAY_POINTS:
        deployment.send("reminder.remind", name=point, seconds=0.1, times=3)
        deployment.start_relay(CELERY_SAGAS_TEST_POINT=point).wait_ended()
    assert {path.stem for path in deployment.folder.glob("*.once")} == set(RELAY_POINTS)
    deployment.start_relay()
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    deployment.wait_handled("reminder.reminded", 3 * len(RELAY_POINTS))
    wait_until(lambda: deployment.queued() == 0, "an empty queue")
    assert deployment.handled("reminder.reminded") == 3 * len(RELAY_POINTS)
    assert [deployment.state("reminder", point) for point in RELAY_POINTS] == [
        {"name": point, "count": 3} for point in RELAY_POINTS
    ]
    assert deployment.failures() == []
