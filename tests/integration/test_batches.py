"""Aggregators under workers that are killed: every item is in a batch that succeeds, and no group is forgotten.

How much of it is run stands in ``CELERY_SAGAS_TEST_BATCHES``: items, groups and kills. ``tox -e chaos`` runs the long one.
"""

import functools
import json
import os
import random
import signal
import time

import pytest

from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.testing.batches import dead_letters_of
from tests.integration.conftest import ENGINES, Deploy
from tests.integration.crew import PAUSE_S, Crew
from tests.integration.deaths import VISIBILITY, wait_died
from tests.integration.flushes import COLLECT, Producer, assert_sound, buffered, came, runs, wait_flushed
from tests.integration.ledgers import SOON
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ITEMS, GROUPS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_BATCHES", "1200,20,4").split(","))
#: The largest batch of the app ``batches``.
SIZE = 20
#: Two producers through the broker, two past it.
DOORS = ("delay", "add", "delay", "add")
#: The items of each.
SHARE = ITEMS // len(DOORS)
#: Items a second that even a slow machine handles between kills.
SLOWEST = 50


@pytest.mark.parametrize(
    ("engine", "broker"),
    matrix(("redis", "rabbitmq"), ("postgresql", "redis"), ("mariadb", "rabbitmq"), ("sqlite", "redis")),
)
@pytest.mark.timeout(600 + ITEMS // SLOWEST + 10 * KILLS)
def test_every_item_is_flushed_whoever_is_killed(deploy: Deploy, engine: str, broker: str) -> None:
    settings = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("batches", broker, engine, **SOON, **settings)
    crew = Crew(deployment, random.Random(f"{engine} {broker}"), ["", ""], spare_last=False)
    crew.wait_ready()
    deadline_s = 60 + ITEMS / SLOWEST
    producers = [Producer(deployment, door, GROUPS) for door in DOORS]
    for kill in range(KILLS):
        crew.wait_ready()
        if kill % 2 == 0:
            hold_one(deployment)
        for number, producer in enumerate(producers):
            producer.tell(part_of(number, kill), PAUSE_S)
        for number, producer in enumerate(producers):
            producer.wait_begun(part_of(number, kill))
        if kill % 2 == 0:
            kill_held(deployment, crew, kill // 2)
        else:
            wait_until(functools.partial(crew.kill_one, is_whole=kill % 4 == 1), "a process to kill")
    for producer in producers:
        producer.wait_ended(deadline_s)
    if broker == "redis":  # kombu loses what it has popped from Redis and not yet noted, so it is sent again, under its ids
        again = Producer(deployment, "delay", GROUPS)
        for number in (number for number, door in enumerate(DOORS) if door == "delay"):
            again.tell(range(number * SHARE, (number + 1) * SHARE))
        again.wait_ended(deadline_s)
    wait_flushed(deployment, set(range(SHARE * len(DOORS))), deadline_s)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe, deadline_s)
    assert buffered(deployment) == 0  # nor has a message that was delivered again brought anything back
    assert_sound(deployment, SIZE, crew.dead)
    died = {run.pid for run in runs(deployment) if not run.has_ended}
    assert {int(pid) for pid in deployment.noted("held")} <= died


def part_of(producer: int, kill: int) -> range:
    """Return what a producer produces around a kill."""
    first = producer * SHARE
    return range(first + SHARE * kill // KILLS, first + SHARE * (kill + 1) // KILLS)


def hold_one(deployment: Deployment) -> None:
    """Have the next run wait until it is killed."""
    (deployment.folder / "hold").touch()


def kill_held(deployment: Deployment, crew: Crew, earlier: int) -> None:
    """Kill the process whose run waits, after so many others."""
    held = wait_until(lambda: deployment.noted("held")[earlier:], deployment.describe)
    crew.kill_process(int(held[0]))


def around(*stages: str) -> list[str]:
    """Return the points before and after stages."""
    return [f"{when} {stage}" for stage in stages for when in ("before", "after")]


POINTS = around("insert", "claim", "renew", "remove", "release")
#: After which the function has begun with items that are still in the buffer.
REPEATED = {"before remove", *around("renew", "release")}


@pytest.mark.parametrize("engine", ENGINES)
def test_items_are_flushed_wherever_their_process_dies(deploy: Deploy, engine: str) -> None:
    deployment = deploy("batch_kill_points", "rabbitmq", engine, **SOON)
    worker = deployment.start("prefork", 4).wait_ready()
    for number, point in enumerate(POINTS):
        deployment.client.send_task(COLLECT, args=({"group": point, "number": number},), task_id=f"item {number}")
        if "insert" not in point:
            wait_until(functools.partial(is_there, deployment, point), deployment.describe)
            do(deployment, "fire", point)
        wait_died(deployment, point)
    wait_flushed(deployment, set(range(len(POINTS))))
    assert {POINTS[number] for number, times in came(deployment).items() if times > 1} == REPEATED
    assert worker.stop() == 0


#: What a program does with items that are never flushed, what else it does, and what a relay does, which must come last.
BY_HAND, PROGRAMS, RELAYS = (
    around("remove_one", "clear"),
    around("fire", "purge", "restore"),
    around("claim_due", "resolve"),
)
RULES = Rules(COLLECT, size=SIZE, within_ms=1_000, lease_ms=2_000)


@pytest.mark.parametrize("engine", ENGINES)
def test_items_are_flushed_wherever_a_relay_or_a_program_dies(deploy: Deploy, engine: str) -> None:
    """Whoever has not died goes on: a program that repeats what it did, and another relay."""
    deployment = deploy("batch_kill_points", "rabbitmq", engine, **SOON, saga_relay=False)
    deployment.start("prefork", 4).wait_ready()
    points = [*BY_HAND, *PROGRAMS, *RELAYS]
    deployment.backend.aggregates.insert(RULES, [addition_at(point, number) for number, point in enumerate(points)])
    for point in around("restore"):
        reject(deployment, point)
    for point in points:
        if stage_of(point) == "claim_due":
            wait_until(functools.partial(is_due, deployment, point), deployment.describe)
        do(deployment, stage_of(point), point)
        wait_died(deployment, point)
        if point in BY_HAND or stage_of(point) == "restore":
            do(deployment, stage_of(point), point)
            wait_until(functools.partial(is_done, deployment, point), deployment.describe)
    assert deployment.backend.dead.list(9) == []
    deployment.start_relay()
    flushed = {number for number, point in enumerate(points) if point not in BY_HAND}
    wait_flushed(deployment, flushed)
    assert came(deployment) == dict.fromkeys(flushed, 1)


def stage_of(point: str) -> str:
    """Return the command at a point."""
    return point.partition(" ")[2]


def addition_at(point: str, number: int) -> Addition:
    """Return the item of a point; those that a relay is to resolve could not be read before."""
    item = json.dumps({"group": point, "number": number})
    return Addition(point, (NewItem(f"item of {point}", item, is_unreadable=stage_of(point) == "resolve"),))


def reject(deployment: Deployment, point: str) -> None:
    """Reject the item of a point, as a flush does."""
    rules, store = RULES._replace(size=1), deployment.backend.aggregates
    snapshot = store.claim(rules, point, "rejecter")
    assert snapshot is not None
    store.remove(rules, point, "rejecter", rejected=dead_letters_of(*snapshot.items, group=point, name=COLLECT))


def do(deployment: Deployment, command: str, group: str) -> None:
    """Have a process give a command as a program or a relay does."""
    deployment.client.send_task("batches.do", args=(command, group))


def is_there(deployment: Deployment, point: str) -> bool:
    """Tell whether the item of a point is buffered, or was: a relay may have been quicker."""
    return buffered(deployment, point) > 0 or (deployment.folder / f"{point}.once").exists()


def is_done(deployment: Deployment, point: str) -> bool:
    """Tell whether a process has given a command, and has not died."""
    return point in deployment.noted("done")


def is_due(deployment: Deployment, group: str) -> bool:
    """Tell whether somebody must look at a group."""
    due_at = {each.group: each.due_at for each in deployment.backend.buffers.groups(COLLECT, 100)}
    return 0 < due_at.get(group, 1) < time.time() * 1000 - 10


#: How long a lease lasts: several times as long as a busy machine holds a process up. Seconds.
LEASE_S = 6


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flush_that_stood_still_removes_nothing_of_another(deploy: Deploy, engine: str) -> None:
    """Its lease has ended, another flush has the items, and it learns so when it goes on."""
    deployment = deploy("frozen_batches", "rabbitmq", engine, **SOON | {"saga_lease_ttl": LEASE_S})
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
    deployment = deploy("frozen_batches", "rabbitmq", engine, **SOON | {"saga_lease_ttl": LEASE_S})
    deployment.start("prefork", 3).wait_ready()
    deployment.client.send_task("frozen.slow", args=(1,), task_id="item 1")
    wait_until(lambda: deployment.noted("slow"), deployment.describe)
    ends = set[int]()

    def has_outlived_its_first_lease() -> bool:
        ends.update(group.due_at for group in deployment.backend.buffers.groups("frozen.slow", 10) if group.leased)
        return len(ends) > 1 and max(ends) - min(ends) > 1_000 * LEASE_S

    wait_until(has_outlived_its_first_lease, deployment.describe)
    (deployment.folder / "renewed").touch()
    wait_until(lambda: deployment.backend.buffers.count("frozen.slow").buffered == 0, deployment.describe)
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


@pytest.mark.parametrize(("aggregator", "calls"), [("failing.raise", 4), ("failing.retry", 3)])
def test_a_function_that_fails_leaves_its_items_and_few_messages(deploy: Deploy, aggregator: str, calls: int) -> None:
    """However many batches wait."""
    deployment = deploy("failing_batches", "rabbitmq", "redis", **SOON | {"saga_lease_ttl": 30})
    deployment.start("prefork", 1).wait_ready()
    for number in range(100):
        deployment.client.send_task(aggregator, args=(number,))
    wait_until(lambda: len(deployment.noted("calls")) >= calls, deployment.describe)
    wait_until(lambda: deployment.backend.buffers.count(aggregator).buffered == 100, deployment.describe)
    wait_until(lambda: deployment.queued() < calls, deployment.describe)


def test_what_was_revoked_or_has_expired_is_not_buffered(deploy: Deploy) -> None:
    deployment = deploy("batches", "rabbitmq", "redis", saga_relay_interval=0.2, worker_enable_remote_control=True)
    worker = deployment.start("prefork", 2).wait_ready()
    told = {"destination": [f"{worker.name}@localhost"], "reply": True}
    wait_until(lambda: deployment.client.control.revoke("revoked", **told), worker.describe)
    for number, options in enumerate([{"task_id": "revoked"}, {"countdown": 2, "expires": 1}, {"countdown": 2}], 1):
        deployment.client.send_task(COLLECT, args=({"group": "d1", "number": number},), **options)
    wait_flushed(deployment, {3})  # it was sent last
    assert [run.numbers for run in runs(deployment)] == [[3]]
