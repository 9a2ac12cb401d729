"""What the functions of aggregators send, under workers that are killed: each removed item has sent its message, and no other.

How much of it is run stands in ``CELERY_SAGAS_TEST_PASSED_ON``: items, groups and kills. ``tox -e chaos`` runs the long one.
"""

import functools
import json
import os
import random

import pytest

from celery_sagas.stores.records import KEY, Lookup
from tests.integration.conftest import ENGINES, Deploy
from tests.integration.crew import Crew
from tests.integration.ledgers import SOON
from tests.integration.matrices import IS_FULL
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ITEMS, GROUPS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_PASSED_ON", "200,4,4").split(","))
#: Items a second that even a slow machine handles between kills.
SLOWEST = 20
#: Where a process is killed in turn: around the removal of its items, and what they send with it.
POINTS = ("after remove", "before remove")


@pytest.mark.parametrize("engine", ENGINES if IS_FULL else ("postgresql", "redis"))
@pytest.mark.timeout(600 + ITEMS // SLOWEST + 10 * KILLS)
def test_every_item_is_passed_on_once_whoever_is_killed(deploy: Deploy, engine: str) -> None:
    """Whatever is published twice has one id, so that a step handles it once."""
    deployment = deploy("passing", "rabbitmq", engine, **SOON)
    crew = Crew(deployment, random.Random(engine), ["", ""], spare_last=False)
    for kill in range(KILLS):
        crew.wait_ready()
        (deployment.folder / POINTS[kill % len(POINTS)]).touch()
        for number in range(ITEMS * kill // KILLS, ITEMS * (kill + 1) // KILLS):
            item = {"group": f"group {number % GROUPS}", "number": number}
            deployment.client.send_task("passing.pass_on", args=(item,), task_id=f"item {number}")
        wait_until(lambda: len(deployment.noted("killed")) > kill, deployment.describe, 60)  # noqa: B023 - called at once
        wait_until(functools.partial(crew.kill_one, is_whole=kill % 4 == 1), "a process to kill")
    wanted = {f"group {group}": list(range(group, ITEMS, GROUPS)) for group in range(GROUPS)}
    wait_until(lambda: came(deployment) == wanted, deployment.describe, 60 + ITEMS / SLOWEST)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe, 60)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe, 60)
    assert came(deployment) == wanted
    assert deployment.backend.buffers.count("passing.pass_on").buffered == 0
    assert deployment.backend.dead.list(9) == []


def came(deployment: Deployment) -> dict[str, list[int]]:
    """Return the numbers that have come to the saga, by their groups; one that came twice is there twice."""
    found = {}
    for group in (f"group {number}" for number in range(GROUPS)):
        record = deployment.backend.sagas.find(Lookup(("tally",), KEY, group)).record
        found[group] = sorted(json.loads(record.data)["numbers"]) if record else []
    return found
