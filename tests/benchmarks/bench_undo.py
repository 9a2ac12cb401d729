"""What it costs to undo: against the requests, with their answers, that are undone."""

import statistics
from functools import partial

import pytest

from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: How much longer it may take to undo requests than to send them one after the other, each after the answer to the one before.
UNDOING = 1.1
STATIONS, ROUNDS = 200, 5


@pytest.mark.parametrize(
    ("engine", "broker"), [("redis", "redis"), ("postgresql", "redis"), ("mariadb", "rabbitmq"), ("postgresql", "rabbitmq")]
)
def test_undoing_against_requests_with_their_answers(deploy: Deploy, report: Report, engine: str, broker: str) -> None:
    deployment = deploy("undoing", broker, engine)
    deployment.paths = [str(APPS)]
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    times = [_trip(deployment, number) for number in range(ROUNDS)]
    assert deployment.failures() == []
    reached = statistics.median(back / forth for forth, back in times)
    forth, back = (statistics.median(column) for column in zip(*times, strict=True))
    report(
        f"undo of {STATIONS} against as many requests, {engine}, {broker} broker",
        f"{reached:.2f}  ({back:.2f} against {forth:.2f} s)",
        f"<= {UNDOING}",
        reached <= UNDOING,
    )


def _trip(deployment: Deployment, number: int) -> tuple[float, float]:
    """Return the seconds that it takes to book, and to undo everything."""
    name = f"trip {number}"
    deployment.send("trip.begin", name=name, stations=STATIONS)
    wait_until(partial(_has_ended, deployment, name), deployment.describe, deadline_s=120)
    began, reached, ended = map(float, deployment.noted(name))
    return reached - began, ended - reached


def _has_ended(deployment: Deployment, name: str) -> bool:
    return len(deployment.noted(name)) == 3
