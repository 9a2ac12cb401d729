"""Sagas in two backends that exchange messages, whichever workers are killed: each message is handled once, in its own backend.

How many orders there are and how many kills stands in ``CELERY_SAGAS_TEST_ELSEWHERE``. ``tox -e chaos`` runs the long one.
"""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.urls import open_backend
from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import SOON
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ORDERS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_ELSEWHERE", "80,4").split(","))
#: Orders a second that even a slow machine ends between kills.
SLOWEST = 2
#: A kill comes so many seconds after it was asked for, at most.
PAUSE_S = 0.5
STEPS = ["order.place", "order.packed", "order.weighed", "order.end"]


@pytest.fixture(params=["postgresql", "mariadb"])
def other(request: pytest.FixtureRequest) -> str:
    """The URL of the orders' backend."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def deployment(deploy: Deploy, other: str) -> Deployment:
    """Orders in SQL and parcels in Redis, with a transport that loses nothing when its worker is killed."""
    settings = {"broker_transport_options": VISIBILITY, "saga_backends": {"orders": {"backend": other}}}
    deployment = deploy("elsewhere", "redis", "redis", **SOON, **settings)
    deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    return deployment


@pytest.fixture
def orders(deployment: Deployment, other: str) -> Iterator[Backend]:
    """The orders' backend."""
    with closing(open_backend(other, prefix=deployment.name, options={})) as backend:
        backend.prepare(create_schema=True, processes=1)
        yield backend


@pytest.mark.timeout(600 + ORDERS // SLOWEST + 10 * KILLS)
def test_each_message_is_handled_once_in_its_own_backend(deployment: Deployment, orders: Backend) -> None:
    crew = Crew(deployment, random.Random(orders.url), ["", ""], spare_last=False, pause_s=PAUSE_S)
    for kill in range(KILLS):
        crew.wait_ready()
        for number in range(ORDERS * kill // KILLS, ORDERS * (kill + 1) // KILLS):
            deployment.send("order.place", order_id=str(number))
        wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    for number in range(ORDERS):
        ended = partial(orders.journal.outcome_of, ["order"], str(number))
        wait_until(ended, partial(describe, deployment, orders, number), 60 + ORDERS / SLOWEST)

    for number in range(ORDERS):
        assert steps_in(orders, number) == Counter(STEPS), describe(deployment, orders, number)
        assert steps_in(deployment.backend, number) == Counter(["parcel.pack"]), describe(deployment, orders, number)
    wait_until(lambda: orders.outbox.count() + deployment.backend.outbox.count() == 0, deployment.describe)
    assert [backend.dead.list(9) for backend in (orders, deployment.backend)] == [[], []]
    assert deployment.failures() == []


def steps_in(backend: Backend, number: int) -> Counter[str]:
    return Counter(entry.step for entry in backend.journal.history(["order", "parcel"], str(number), 100))


def describe(deployment: Deployment, orders: Backend, number: int) -> str:
    """Describe where an order stands, for a failed test."""
    journals = [backend.journal.history(["order", "parcel"], str(number), 100) for backend in (orders, deployment.backend)]
    return "\n".join([*map(str, journals), deployment.describe()])


def test_operators_see_both(deployment: Deployment, orders: Backend) -> None:
    """A worker's relay, dead letters and the tables."""
    deployment.settings["worker_enable_remote_control"] = True
    deployment.start().wait_ready()
    deployment.send("order.place", order_id="1", surplus=True)
    wait_until(lambda: orders.dead.count(), deployment.describe)
    (dead_letter,) = orders.dead.list(9)
    assert dead_letter.id in deployment.command("sagas", "dead", "list")
    told = partial(deployment.command, "inspect", "sagas_relay", "--timeout", "10")
    wait_until(lambda: orders.url in told(), deployment.describe)  # once their relay has begun to sweep
    assert "CREATE TABLE" in deployment.command("sagas", "schema", "--backend", "orders")
    deployment.command("sagas", "dead", "discard", dead_letter.id, "--reason", "a mistake", "--actor", "ann")
    assert orders.dead.count() == 0
    assert "ann  discard  order  -    -        a mistake" in deployment.command("sagas", "audit")  # it names no instance
    [entry] = orders.audit.recent(9).entries
    assert (entry.actor, entry.action, entry.saga, entry.key) == ("ann", "discard", "order", "")


def test_a_backend_that_is_missing_in_the_settings_ends_the_worker(deployment: Deployment) -> None:
    deployment.settings["saga_backends"] = {}
    worker = deployment.start()
    assert worker.wait_ended() != 0
    assert "Order names the backend 'orders', and saga_backends has none. Add it" in worker.log
