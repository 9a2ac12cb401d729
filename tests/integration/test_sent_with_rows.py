"""Messages that are sent with rows, by producers and plain tasks that are killed: each committed row has sent its own, once.

How much of it is run stands in ``CELERY_SAGAS_TEST_SENT``: rows and kills. ``tox -e chaos`` runs the long one.
"""

import os
import random
from contextlib import suppress
from functools import partial

import pytest

from tests.integration.conftest import Deploy
from tests.integration.crew import Crew
from tests.integration.matrices import DATABASES, IS_FULL, matrix
from tests.integration.restarting import Server, server
from tests.integration.rows import deploy_rows, has_died, have_die, numbers_in
from tests.integration.worker import APPS, Deployment, Worker
from tests.waiting import wait_until

__all__ = ["server"]

ROWS, KILLS = map(int, os.environ.get("CELERY_SAGAS_TEST_SENT", "300,12").split(","))
PRODUCERS = 2
#: As in the apps.
SAGAS, UNDONE_EVERY = 20, 20
#: Rows a second that even a slow machine writes and handles between kills.
SLOWEST = 10
POINTS = ("after insert", "after send", "before claim", "after claim", "after publish", "after confirm")
#: Who is killed in turn, and where: a producer, then the plain task; and any worker, or a process of it, at any moment.
DEATHS = [
    death
    for number, point in enumerate(POINTS)
    for death in (f"producer {point}", "" if number % 2 else f"teller {POINTS[number - 3]}")
]
COUNT, HEAR = "tally.count", "echo.hear"


class Producer:
    """A producer, in a process of its own; once it is killed, another one goes on with what it had not finished."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._told: list[range] = []
        self._process = self._start()

    def tell(self, numbers: range) -> None:
        """Have it produce these numbers."""
        self._told.append(numbers)
        self._tell(numbers)

    def go_on(self) -> bool:
        """Replace it if it was killed; return whether it has produced everything."""
        left = [numbers for numbers in self._told if str(numbers.start) not in self._deployment.noted("produced")]
        if not self._process.is_running:
            self._process = self._start()
            for numbers in left:
                self._tell(numbers)
        return not left

    def _start(self) -> Worker:
        return self._deployment.start_script(APPS / "producing_rows.py")

    def _tell(self, numbers: range) -> None:
        with suppress(BrokenPipeError):  # it has just been killed
            self._process.tell(f"{numbers.start} {numbers.stop}")


@pytest.mark.parametrize(
    ("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("mariadb", "redis"), ("sqlite", "rabbitmq"), engines=DATABASES)
)
@pytest.mark.timeout(600 + ROWS // SLOWEST + 10 * KILLS)
def test_each_committed_row_has_sent_its_messages(deploy: Deploy, engine: str, broker: str) -> None:
    deployment = deploy_rows(deploy, "sent_with_rows", engine, broker)
    crew = Crew(deployment, random.Random(f"{engine} {broker}"), ["", ""], spare_last=False)
    producers = [Producer(deployment) for _ in range(PRODUCERS)]
    for kill in range(KILLS):
        crew.wait_ready()
        who = DEATHS[kill % len(DEATHS)]
        if who:
            have_die(deployment, who)
        for number, producer in enumerate(producers):
            producer.tell(part_of(number, kill))
        if who:
            wait_until(partial(has_died, deployment, who, 1 + kill // len(DEATHS)), deployment.describe)
        else:
            wait_until(partial(crew.kill_one, is_whole=kill % 4 == 1), "a process to kill")
        for producer in producers:
            producer.go_on()
    for producer in producers:
        wait_until(producer.go_on, deployment.describe, 60 + ROWS / SLOWEST)
    assert_sent(deployment)


@pytest.mark.parametrize("server", ["redis", "rabbitmq"] if IS_FULL else ["redis"], indirect=True)
def test_a_broker_that_is_restarted(server: Server, deploy: Deploy) -> None:
    """It is killed, then stopped in good order: what is committed without it is sent once it is back."""
    deployment = deploy_rows(deploy, "sent_with_rows", "postgresql", server.url)
    deployment.start("prefork", 2).wait_ready()
    producer, share = Producer(deployment), ROWS // 4
    for end, first in ((server.kill, 0), (server.stop, 2 * share)):
        told = len(numbers_in(deployment, "told"))
        producer.tell(range(first, first + share))
        wait_until(lambda told=told: len(numbers_in(deployment, "told")) > told, deployment.describe)
        end()
        producer.tell(range(first + share, first + 2 * share))
        wait_until(producer.go_on, deployment.describe)
        assert deployment.backend.outbox.count() > 0
        server.start()
    assert_sent(deployment)


def part_of(producer: int, kill: int) -> range:
    """Return what a producer produces around a kill."""
    first, share = producer * (ROWS // PRODUCERS), ROWS // PRODUCERS
    return range(first + share * kill // KILLS, first + share * (kill + 1) // KILLS)


def assert_sent(deployment: Deployment) -> None:
    """Assert that each message of a committed row was handled once, and no other."""
    wanted = [number for number in range(ROWS) if number % UNDONE_EVERY]
    assert numbers_in(deployment, "sent") == wanted
    for step in (COUNT, HEAR):
        deployment.wait_handled(step, len(wanted), 60 + ROWS / SLOWEST)
    wait_until(lambda: deployment.backend.outbox.count() == 0, deployment.describe)
    wait_until(lambda: deployment.queued() == 0 and deployment.unacknowledged() == 0, deployment.describe)
    assert numbers_in(deployment, "told") == wanted
    assert [handled_by(deployment, saga) for saga in ("tally", "echo")] == [wanted] * 2
    assert [deployment.handled(step) for step in (COUNT, HEAR)] == [len(wanted)] * 2
    assert deployment.backend.dead.list(9) == []
    assert deployment.failures() == []


def handled_by(deployment: Deployment, saga: str) -> list[int]:
    """Return the numbers that the instances of a saga have got."""
    states = [deployment.state(saga, f"{saga} {number}") for number in range(SAGAS)]
    return sorted(number for state in states if state for number in state["numbers"])
