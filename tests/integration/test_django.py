"""A Django project with real workers: its rows and its sagas are there together, or not at all."""

import json
import random
from functools import partial

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.contrib.django.databases import PROJECT, database_of
from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import SOON
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ORDERS, PROCESSES, UNDONE_EVERY = 1_000, 4, 10
SLICES, KILLS = 120, 6
ORDERED, CUT, FROST, CRUMBS = "baking.ordered", "baking.cut", "baking.frost", "bakery.sagas.crumbs"


def deploy_bakery(deploy: Deploy, engine: str, broker: str, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Deploy the project, with its tables."""
    settings = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("baking", broker, engine, saga_backend="django://default", **SOON, **settings)
    if broker == "redis":
        deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    deployment.paths.append(str(PROJECT))
    monkeypatch.setenv("BAKERY_DATABASES", json.dumps({"default": database_of(make_url(deployment.backend_url))}))
    deployment.script(PROJECT / "manage.py", "migrate")
    return deployment


def count(deployment: Deployment, query: str) -> int:
    """Run a query that counts, about what this deployment has ordered."""
    engine = create_engine(deployment.backend_url)
    try:
        with engine.connect() as connection:
            return int(connection.execute(text(query), {"mine": f"{deployment.name}-%", "prefix": deployment.name}).scalar_one())
    finally:
        engine.dispose()


def test_a_saga_starts_beside_each_row(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = deploy_bakery(deploy, "postgresql", "rabbitmq", monkeypatch)
    deployment.start("prefork", 2).wait_ready()
    each, wanted = ORDERS // PROCESSES, ORDERS - ORDERS // UNDONE_EVERY
    parts = [(str(number * each), str((number + 1) * each)) for number in range(PROCESSES)]
    scripts = [deployment.start_script(PROJECT / "ordering_cakes.py", deployment.name, *part) for part in parts]
    assert [script.wait_ended() for script in scripts] == [0] * PROCESSES, deployment.describe()
    deployment.wait_handled(ORDERED, wanted)
    wait_until(lambda: deployment.backend.outbox.count() == 0 and deployment.queued() == 0, deployment.describe)
    assert count(deployment, "SELECT count(*) FROM bakery_cake WHERE order_id LIKE :mine") == wanted
    assert count(deployment, "SELECT count(*) FROM saga_instance WHERE prefix = :prefix") == wanted
    assert deployment.handled(ORDERED) == wanted
    assert deployment.failures() == []


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "redis"), engines=("postgresql", "mariadb")))
def test_steps_write_their_rows_once_whoever_is_killed(
    deploy: Deploy, engine: str, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, chance = deploy_bakery(deploy, engine, broker, monkeypatch), random.Random(engine)
    order = f"{deployment.name}-1"
    crew = Crew(deployment, chance, ["", ""], spare_last=False, pause_s=0.5, processes=4)
    deployment.send(ORDERED, order_id=order)
    deployment.wait_handled(ORDERED, 1)
    for kill in range(KILLS):
        crew.wait_ready()
        for number in range(SLICES * kill // KILLS, SLICES * (kill + 1) // KILLS):
            deployment.send(CUT, order_id=order, number=number)
        wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    deployment.wait_handled(CUT, SLICES)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe)
    assert count(deployment, "SELECT count(*) FROM bakery_slice WHERE order_id LIKE :mine") == SLICES
    assert count(deployment, "SELECT count(DISTINCT number) FROM bakery_slice WHERE order_id LIKE :mine") == SLICES
    state = deployment.state("baking", order)
    assert state is not None
    assert state["slices"] == deployment.handled(CUT) == SLICES
    assert deployment.failures() == []


@pytest.mark.parametrize(("engine", "broker"), matrix(("mariadb", "rabbitmq"), engines=("postgresql", "mariadb")))
def test_batches_write_their_rows_once_whoever_is_killed(
    deploy: Deploy, engine: str, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, chance = deploy_bakery(deploy, engine, broker, monkeypatch), random.Random(engine)
    crew = Crew(deployment, chance, ["", ""], spare_last=False, pause_s=0.5)
    for kill in range(KILLS):
        crew.wait_ready()
        for number in range(SLICES * kill // KILLS, SLICES * (kill + 1) // KILLS):
            deployment.client.send_task(CRUMBS, args=(number,), task_id=f"item {number}")
        wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe)
    written = partial(count, deployment, "SELECT count(*) FROM bakery_slice WHERE order_id = 'crumbs'")
    wait_until(lambda: written() >= SLICES, deployment.describe)  # RabbitMQ does not tell what workers have taken
    wait_until(lambda: deployment.backend.buffers.count(CRUMBS).buffered == 0, deployment.describe)
    assert written() == SLICES
    assert count(deployment, "SELECT count(DISTINCT number) FROM bakery_slice WHERE order_id = 'crumbs'") == SLICES
    assert deployment.backend.dead.list(9) == []
    assert deployment.failures() == []


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("mariadb", "redis")))
def test_steps_that_lock_each_others_rows_both_succeed(
    deploy: Deploy, engine: str, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database undoes one of them, which runs again."""
    deployment = deploy_bakery(deploy, engine, broker, monkeypatch)
    deployment.settings["imports"] = ["frosting"]
    first, second = cakes = [f"{deployment.name}-{number}" for number in (1, 2)]
    deployment.script(PROJECT / "ordering_cakes.py", deployment.name, "1", "3")
    deployment.start("prefork", 2).wait_ready()
    deployment.wait_handled(ORDERED, 2)
    deployment.send(FROST, order_id=first, cakes=cakes)
    deployment.send(FROST, order_id=second, cakes=cakes[::-1])
    deployment.wait_handled(FROST, 2)
    assert count(deployment, "SELECT count(*) FROM bakery_cake WHERE flavour LIKE '%++' AND order_id LIKE :mine") == len(cakes)
    assert [(deployment.state("baking", cake) or {}).get("slices") for cake in cakes] == [1, 1]
    assert len(deployment.noted("attempts")) > len(cakes), "there was no deadlock"
    assert deployment.failures() == []
