"""Messages in any order, whichever workers are killed: each is handled once, and none is left, neither waiting nor dead.

How many orders there are and how many kills stands in ``CELERY_SAGAS_TEST_EARLY``. ``tox -e chaos`` runs the long one.
"""

import os
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import SOON
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

ORDERS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_EARLY", "80,4").split(","))
#: Orders a second that even a slow machine ends between kills.
SLOWEST = 2
#: A kill comes so many seconds after it was asked for, at most.
PAUSE_S = 0.5
#: One order in so many is placed when everything else was sent.
LATE = 4
SCANS = 3
PLACE, DELIVER = "order.place", "order.deliver"
#: The steps in the order in which they run; scans come whenever it is their turn.
IN_TURN = (PLACE, "order.pay", "order.pack", "order.send", DELIVER)

Message = tuple[str, dict[str, Any]]


def messages(number: int) -> list[Message]:
    """Return the messages of an order, but the one that places it."""
    key, code = {"order_id": str(number)}, {"code": f"code-{number}"}
    scans: list[Message] = [("order.scan", {**code, "number": scan}) for scan in range(SCANS)]
    return [("order.pay", key), ("order.pack", key), ("order.send", code), (DELIVER, key), *scans]


def shuffled(chance: random.Random) -> list[Message]:
    """Return the messages of all orders, in any order."""
    placed = [(PLACE, {"order_id": str(number)}) for number in range(ORDERS)]
    sent = [message for number in range(ORDERS) for message in messages(number)]
    sent += [message for number, message in enumerate(placed) if number % LATE]
    chance.shuffle(sent)
    return sent + placed[::LATE]


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
@pytest.mark.timeout(600 + ORDERS // SLOWEST + 10 * KILLS)
def test_every_message_is_handled_once(deploy: Deploy, engine: str, broker: str) -> None:
    deployment, chance = deploy_orders(deploy, engine, broker), random.Random(f"{engine} {broker}")
    crew, sent = Crew(deployment, chance, [""] * 3, spare_last=False, pause_s=PAUSE_S), shuffled(chance)
    ids: list[str] = []
    for kill in range(KILLS):
        crew.wait_ready()
        part = sent[len(sent) * kill // KILLS : len(sent) * (kill + 1) // KILLS]
        ids += [deployment.send(task, **given) for task, given in part]
        wait_until(partial(crew.kill_one, is_whole=kill % 2 == 0), "a process to kill")
    wait_delivered(deployment)
    assert_handled(deployment, ids)


def deploy_orders(deploy: Deploy, engine: str, broker: str) -> Deployment:
    """Deploy orders; on Redis with the transport that loses nothing when its worker is killed."""
    settings = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("early", broker, engine, **SOON, **settings)
    if broker == "redis":
        deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    return deployment


def wait_delivered(deployment: Deployment) -> None:
    """Wait until every order has ended, and nothing is left to do."""
    deadline_s = 60 + ORDERS / SLOWEST
    for number in range(ORDERS):
        wait_until(partial(deployment.outcome, "order", str(number)), partial(describe, deployment, number), deadline_s)
    wait_until(lambda: deployment.queued() == 0 and deployment.backend.outbox.count() == 0, deployment.describe)
    wait_until(lambda: deployment.unacknowledged() == 0, deployment.describe)


def describe(deployment: Deployment, number: int) -> str:
    """Describe where an order stands, for a failed test."""
    entries = [(entry.step, entry.outcome, entry.message_id) for entry in deployment.history("order", str(number))]
    return "\n".join(map(str, [deployment.record("order", str(number)), *entries, deployment.describe()]))


def assert_handled(deployment: Deployment, ids: list[str]) -> None:
    """Assert that each message was handled once, in the order that makes sense, and that some have waited."""
    entries = [entry for number in range(ORDERS) for entry in deployment.history("order", str(number))]
    handled = [entry for entry in entries if entry.outcome in ("started", "handled", "completed")]
    assert Counter(entry.message_id for entry in handled) == Counter(ids)
    for number in range(ORDERS):
        steps = [entry.step for entry in handled if entry.key == str(number) and entry.step in IN_TURN]
        assert steps == list(IN_TURN), describe(deployment, number)
        assert deployment.record("order", str(number)) is None
    waited = Counter(entry.instance_id != "" for entry in entries if entry.outcome == "deferred")
    assert waited[True] > ORDERS, "too few messages were deferred with an order"
    assert waited[False] > 0, "no message has waited in the backend for its order"
    assert deployment.backend.dead.list(10) == []
    assert deployment.failures() == []
