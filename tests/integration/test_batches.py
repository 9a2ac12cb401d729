"""Aggregators under workers that are killed: every item is in a batch that succeeds, and no group is forgotten.

How much of it is run stands in ``CELERY_SAGAS_TEST_BATCHES``: items, groups and kills. ``tox -e chaos`` runs the long one.
"""

import os
import random
import signal
from collections import Counter
from itertools import pairwise

import pytest

from tests.integration.conftest import ENGINES, Deploy
from tests.integration.crew import Crew
from tests.integration.flushes import COLLECT, assert_sound, produce, runs, wait_flushed
from tests.integration.ledgers import SOON
from tests.integration.test_killed import VISIBILITY
from tests.waiting import wait_until

ITEMS, GROUPS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_BATCHES", "2000,20,5").split(","))
#: The largest batch of the app ``batches``.
SIZE = 20
#: Two producers through the broker, two past it.
DOORS = ("delay", "add", "delay", "add")
#: Items a second that even a slow machine handles between kills.
SLOWEST = 50


@pytest.mark.parametrize(
    ("engine", "broker"), [("redis", "redis"), ("redis", "rabbitmq"), ("postgresql", "rabbitmq"), ("sqlite", "redis")]
)
@pytest.mark.timeout(600 + ITEMS // SLOWEST + 10 * KILLS)
def test_every_item_is_flushed_whoever_is_killed(deploy: Deploy, engine: str, broker: str) -> None:
    settings = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("batches", broker, engine, **SOON, **settings)
    crew = Crew(deployment, random.Random(f"{engine} {broker}"), ["", ""], spare_last=False)
    crew.wait_ready()
    share = ITEMS // len(DOORS)
    shares = [range(number * share, (number + 1) * share) for number in range(len(DOORS))]
    producers = [produce(deployment, door, numbers, GROUPS) for door, numbers in zip(DOORS, shares, strict=True)]
    for _ in range(KILLS):
        crew.wait_ready()
        wait_until(crew.kill_one, "a process to kill")
    for producer in producers:
        wait_until(lambda producer=producer: producer.poll() is not None, "the end of a producer", 60 + ITEMS / SLOWEST)
        assert producer.returncode == 0
    if broker == "redis":  # kombu loses what it has popped from Redis and not yet noted, so it is sent again, under its ids
        again = [
            produce(deployment, door, numbers, GROUPS) for door, numbers in zip(DOORS, shares, strict=True) if door == "delay"
        ]
        assert [producer.wait(60 + ITEMS / SLOWEST) for producer in again] == [0] * len(again)
    wait_flushed(deployment, set(range(share * len(DOORS))), 60 + ITEMS / SLOWEST)
    assert_sound(deployment, SIZE, crew.dead)


POINTS = [f"{when} {stage}" for stage in ("insert", "claim", "remove", "release") for when in ("before", "after")]


@pytest.mark.parametrize(("engine", "broker"), [*((engine, "rabbitmq") for engine in ENGINES)])
def test_items_are_flushed_wherever_their_process_dies(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("batch_kill_points", broker, engine, **SOON)
    worker = deployment.start("prefork", len(POINTS)).wait_ready()
    for number, point in enumerate(POINTS):
        deployment.client.send_task(COLLECT, args=({"group": point, "number": number},), task_id=f"item {number}")
    wait_flushed(deployment, set(range(len(POINTS))))
    came = Counter(number for run in runs(deployment) for number in run.numbers)
    repeated = {POINTS[number] for number, times in came.items() if times > 1}
    # those whose function had begun when their process died, and those whose function raised
    assert repeated == {"before remove", "before release", "after release"}
    assert worker.stop() == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flush_that_stood_still_removes_nothing_of_another(deploy: Deploy, engine: str) -> None:
    """AG-15, T4: its lease has ended, another flush has the items, and it learns so when it goes on."""
    deployment = deploy("frozen_batches", "rabbitmq", engine, **SOON)
    deployment.start("prefork", 2).wait_ready()
    deployment.client.send_task("frozen.freeze", args=(1,), task_id="item 1")
    wait_until(lambda: len(deployment.noted("batches")) == 2, deployment.describe)
    wait_until(lambda: deployment.backend.buffers.count("frozen.freeze").buffered == 0, deployment.describe)
    (pid,) = deployment.noted("frozen")
    os.kill(int(pid), signal.SIGCONT)
    wait_until(lambda: any("LeaseLost" in failure for failure in deployment.failures()), deployment.describe)
    assert len(deployment.noted("batches")) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_lease_is_renewed_while_the_function_runs(deploy: Deploy, engine: str) -> None:
    deployment = deploy("frozen_batches", "rabbitmq", engine, **{**SOON, "saga_lease_ttl": 1})
    deployment.start("prefork", 3).wait_ready()
    deployment.client.send_task("frozen.slow", args=(1,), task_id="item 1")
    wait_until(
        lambda: deployment.noted("slow") and deployment.backend.buffers.count("frozen.slow").buffered == 0, deployment.describe
    )
    assert deployment.noted("slow") == ["[1]"]
    assert deployment.failures() == []


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_what_follows_an_item_is_called_when_it_is_buffered(deploy: Deploy, pool: str) -> None:
    deployment = deploy("batches", "rabbitmq", "redis", **SOON)
    deployment.start(pool, 2).wait_ready()
    item = deployment.client.signature(COLLECT, args=({"group": "d1", "number": 1},))
    (item | deployment.client.signature("batches.tell", args=(1,), immutable=True)).apply_async()
    deployment.client.send_task(COLLECT, args=({"group": "d1", "number": 2},))
    wait_until(lambda: deployment.noted("told") == ["1"], deployment.describe)
    wait_flushed(deployment, {1, 2})


@pytest.mark.parametrize(("aggregator", "pauses"), [("failing.raise", (1, 2, 4)), ("failing.retry", (3, 3))])
def test_a_function_that_fails_is_not_called_without_a_pause(deploy: Deploy, aggregator: str, pauses: tuple[int, ...]) -> None:
    """However many batches wait: it pauses for 1, 2, 4 … s, or for as long as it says."""
    deployment = deploy("failing_batches", "rabbitmq", "redis", **{**SOON, "saga_lease_ttl": 30})
    deployment.start("prefork", 1).wait_ready()
    for number in range(100):
        deployment.client.send_task(aggregator, args=(number,))
    wait_until(lambda: len(deployment.noted("calls")) > len(pauses), deployment.describe)
    times = [float(line) for line in deployment.noted("calls")]
    found = [after - before for before, after in pairwise(times)]
    assert all(each >= 0.8 * pause for each, pause in zip(found, pauses, strict=False)), found
    assert deployment.backend.buffers.count(aggregator).buffered == 100
    assert deployment.queued() <= len(pauses)


def test_what_was_revoked_or_has_expired_is_not_buffered(deploy: Deploy) -> None:
    deployment = deploy("batches", "rabbitmq", "redis", **SOON, worker_enable_remote_control=True)
    deployment.start("prefork", 2).wait_ready()
    revoked, expired, wanted = [
        deployment.client.send_task(COLLECT, args=({"group": "d1", "number": number},), countdown=3, expires=expires)
        for number, expires in ((1, None), (2, 1), (3, None))
    ]
    deployment.client.control.revoke(revoked.id)
    wait_flushed(deployment, {3})
    assert [run.numbers for run in runs(deployment)] == [[3]], (expired, wanted)
