"""Workers and their pools' processes are killed at random moments: every message counts once, and no timeout is lost.

How much of it is run stands in ``CELERY_SAGAS_TEST_CHAOS``: messages, instances and kills. ``tox -e chaos`` runs the long one.
"""

import os
import random
from functools import partial
from typing import Any

import pytest

from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import ALARM, HEAR, SOON, Sent, assert_kept, enter, enter_again
from tests.integration.matrices import matrix
from tests.waiting import wait_until

MESSAGES, INSTANCES, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_CHAOS", "240,20,4").split(","))
#: Messages that a process has received beforehand: enough for batches.
PREFETCHED = 16
#: Messages a second that even a slow machine handles between kills.
SLOWEST = 20


@pytest.mark.parametrize(
    ("engine", "broker"),
    matrix(("sqlite", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "rabbitmq"), ("redis", "redis")),
)
@pytest.mark.timeout(600 + MESSAGES // SLOWEST + 10 * KILLS)
def test_every_message_counts_once_whoever_is_killed(deploy: Deploy, engine: str, broker: str) -> None:
    settings: dict[str, Any] = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    settings["worker_prefetch_multiplier"] = PREFETCHED
    deployment = deploy("chaos", broker, engine, **SOON, **settings)
    heard, alarmed = deployment.route(HEAR), deployment.route(ALARM)
    crew = Crew(deployment, random.Random(f"{engine} {broker}"), ["", "", f"{heard},{alarmed}"], broker == "redis")
    sent: Sent = {}
    for kill in range(KILLS):
        crew.wait_ready()
        sent |= enter(deployment, range(MESSAGES * kill // KILLS, MESSAGES * (kill + 1) // KILLS), INSTANCES)
        wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    if broker == "redis":
        # kombu loses what it has popped from Redis and not yet noted, so the producer repeats everything under its ids
        enter_again(deployment, sent)
    assert_kept(deployment, sent, 60 + MESSAGES / SLOWEST)
    wait_until(
        lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe, 60 + MESSAGES / SLOWEST
    )
    assert_kept(deployment, sent)  # nor has a repeat changed anything
