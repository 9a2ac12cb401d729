"""Batches whose rows are written with the removal of their items, under workers that are killed: each item's row is there once.

How much of it is run stands in ``CELERY_SAGAS_TEST_BATCH_ROWS``: items and kills. ``tox -e chaos`` runs the long one.
"""

import os
import random
from functools import partial

import pytest

from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.matrices import DATABASES, matrix
from tests.integration.rows import POINTS, deploy_rows, has_died, have_die, numbers_in
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ITEMS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_BATCH_ROWS", "300,6").split(","))
#: Few enough for full batches.
GROUPS = 4
#: Items a second that even a slow machine handles between kills.
SLOWEST = 20
#: Who is killed in turn: a process at a point, a whole worker, a process.
DEATHS = (*POINTS, "", "")
STORE = "rows.store"


@pytest.mark.parametrize(
    ("engine", "broker"), matrix(("postgresql", "redis"), ("mariadb", "rabbitmq"), ("sqlite", "rabbitmq"), engines=DATABASES)
)
@pytest.mark.timeout(600 + ITEMS // SLOWEST + 10 * KILLS)
def test_each_item_has_one_row_whoever_is_killed(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy_rows(deploy, "rows_of_batches", engine, broker)
    crew = Crew(deployment, random.Random(f"{engine} {broker}"), ["", ""], spare_last=False)
    for kill in range(KILLS):
        crew.wait_ready()
        where = DEATHS[kill % len(DEATHS)]
        if where:
            have_die(deployment, where)
        for number in range(ITEMS * kill // KILLS, ITEMS * (kill + 1) // KILLS):
            item = {"group": f"group {number % GROUPS}", "number": number}
            deployment.client.send_task(STORE, args=(item,), task_id=f"item {number}")
        if where:
            wait_until(partial(has_died, deployment, where, 1 + kill // len(DEATHS)), deployment.describe)
        else:
            wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    assert_stored(deployment)


def assert_stored(deployment: Deployment) -> None:
    """Assert that each item has one row, and that nothing is left to do."""
    deadline_s, wanted = 60 + ITEMS / SLOWEST, list(range(ITEMS))
    wait_until(lambda: numbers_in(deployment, "item") == wanted, deployment.describe, deadline_s)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe, deadline_s)
    assert deployment.backend.buffers.count(STORE).buffered == 0
    assert numbers_in(deployment, "item") == wanted  # nor has a message that was delivered again written anything
    assert deployment.backend.dead.list(9) == []
    assert deployment.failures() == []
