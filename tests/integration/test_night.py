"""A night shift, with real workers: seven purchases of many have gone wrong, each in its way; they are found, and mended."""

import json
import os
import shlex
from collections.abc import Container
from typing import Any

import pytest

from celery_sagas.stores.instances import MOST
from tests.integration.conftest import Deploy
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.servers import unique
from tests.waiting import DEADLINE_S, wait_until

#: How many purchases are right; every second one is delivered, and the others wait for a week.
RIGHT = int(os.environ.get("CELERY_SAGAS_TEST_NIGHT", "300"))
#: For how long they are waited for. Seconds.
HANDLED_S = DEADLINE_S + RIGHT / 50
SAGA = "purchase"
#: The steps whose timeouts and requests go to queues of their own.
GIVE_UP, CHARGE = "purchase.give_up", "night.charge"
#: An hour before it is late, for those who ask.
SLOW = {"CELERY_SAGAS_TEST_CLOCK_OFF_S": "-3600"}
WRONG = {
    "lost timeout": "overdue",
    "lost answer": "open",
    "poison": "failing",
    "unknown step": "overdue",
    "newer schema": "newer",
    "paused": "paused",
    "idle": "idle",
}

#: What is done about them.
ACTS = [
    ("lost timeout", "fire"),
    ("lost answer", "answer"),
    ("poison", "retry"),
    ("unknown step", "skip"),
    ("paused", "pause"),
    ("paused", "resume"),
    ("idle", "terminate"),
]


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
def test_what_has_gone_wrong_is_found_and_mended(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy("night", broker, engine, worker_prefetch_multiplier=100, worker_enable_remote_control=True)
    queues = {task: deployment.route(task) for task in (GIVE_UP, CHARGE)}
    _go_wrong(deployment, queues)

    wait_until(lambda: _stuck(deployment) == WRONG, lambda: f"what is wrong: {_stuck(deployment)}")
    shown = {number: _command(deployment, "show", SAGA, number, "--json")[0] for number in WRONG}
    assert {number: each["verdict"] for number, each in shown.items()} == WRONG
    remedies = {number: [remedy["command"] for remedy in each["remedies"]] for number, each in shown.items()}
    _mend(deployment, remedies, queues[GIVE_UP])

    assert _stuck(deployment) == {}
    assert sorted(_live(deployment)) == sorted(map(str, range(1, RIGHT, 2)))
    assert all(deployment.outcome(SAGA, number) for number in WRONG)
    assert all(deployment.outcome(SAGA, str(number)) for number in range(0, RIGHT, 2))
    acts = [(each["key"], each["action"]) for each in _command(deployment, "audit", SAGA, "--json")]
    assert sorted(acts) == sorted(ACTS)
    assert deployment.backend.dead.list(10) == []


def _go_wrong(deployment: Deployment, queues: dict[str, str]) -> None:
    """Have many purchases made, and those go wrong."""
    before = {**deployment.settings}
    deployment.settings["saga_relay"] = False
    old = deployment.start("prefork", 1, CELERY_SAGAS_TEST_RELEASE="1", **SLOW).wait_ready()
    _buy(deployment, "buy_as_before", "unknown step")
    _buy(deployment, "buy_in_a_hurry", "lost timeout")
    assert old.stop() == 0
    new = deployment.start("prefork", 1, CELERY_SAGAS_TEST_RELEASE="3").wait_ready()
    _buy(deployment, "reserve", "newer schema")
    assert new.stop() == 0
    deployment.settings = before

    deployment.start("prefork", 2).wait_ready()
    for step, number in (("buy_on_account", "lost answer"), ("buy", "poison"), ("buy", "paused"), ("reserve", "idle")):
        deployment.send(f"{SAGA}.{step}", number=number)
    for number in range(RIGHT):
        deployment.send(f"{SAGA}.buy", number=str(number))
    deployment.wait_handled(f"{SAGA}.buy", RIGHT + 2, HANDLED_S)
    _command(deployment, "pause", SAGA, "paused", "--reason", "carrier down", "--actor", "ann")
    deployment.send(f"{SAGA}.pack", number="poison")
    for number in range(0, RIGHT, 2):
        deployment.send(f"{SAGA}.deliver", number=str(number))
    deployment.wait_handled(f"{SAGA}.deliver", (RIGHT + 1) // 2, HANDLED_S)
    wait_until(lambda: deployment.backend.dead.list(1), deployment.describe)
    wait_until(lambda: [deployment.queued(queue) for queue in queues.values()] == [1, 1], deployment.describe)
    deployment.purge()


def _buy(deployment: Deployment, step: str, number: str) -> None:
    deployment.send(f"{SAGA}.{step}", number=number)
    deployment.wait_handled(f"{SAGA}.{step}", 1)


def _mend(deployment: Deployment, remedies: dict[str, list[str]], queue: str) -> None:
    """Do what ``show`` says; where it can only say how to look, decide what becomes of the purchase."""
    deployment.start("prefork", 1, queue=queue)
    (deployment.folder / "shelf").touch()
    for number in ("lost timeout", "paused", "lost answer", "poison", "unknown step", "idle"):
        for command in remedies[number]:
            _run(deployment, command)
    _command(deployment, "skip", SAGA, "unknown step", "reminder", "--reason", "nobody is reminded any more")
    _command(deployment, "terminate", SAGA, "idle", "--yes", "--reason", "the customer is gone")
    deployment.start("prefork", 1, CELERY_SAGAS_TEST_RELEASE="3")
    for number in ("paused", "unknown step", "newer schema"):
        deployment.send(f"{SAGA}.deliver", number=number)
    wait_until(lambda: all(deployment.outcome(SAGA, number) for number in WRONG), deployment.describe, 2 * DEADLINE_S)


def _stuck(deployment: Deployment) -> dict[str, str]:
    """Return the verdict of each instance that is stuck."""
    found = _command(deployment, "stuck", "--late", "0s", "--json", statuses=(0, 3))
    assert len(found) == len({each["key"] for each in found})
    return {each["key"]: each["verdict"] for each in found}


def _run(deployment: Deployment, command: str) -> None:
    """Run a command that was printed."""
    name, app, _, *words = shlex.split(command)
    assert (name, app) == ("celery", "-A")
    deployment.command(*({"WHY": "a test", "JSON": '"receipt"'}.get(word, word) for word in words))


def _command(deployment: Deployment, *words: str, statuses: Container[int] = (0,)) -> list[Any]:
    """Run a command; return the objects that it prints."""
    process = deployment._run(["sagas", *words], {}, unique("command"))
    assert process.wait_ended() in statuses, process.describe()
    process.kill()
    deployment.workers.remove(process)
    return [json.loads(line) for line in process.output.splitlines() if line.startswith("{")]


def _live(deployment: Deployment) -> list[str]:
    """Return the numbers of the purchases that have not ended."""
    found, after, is_first = list[str](), "", True
    while after or is_first:
        page = deployment.backend.instances.page(SAGA, MOST, after)
        found, after, is_first = [*found, *(glance.key for glance in page.instances)], page.after, False
    return found
