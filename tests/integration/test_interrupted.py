"""Steps that are interrupted anywhere: nobody gets another's answer, and every message counts once."""

import random

import pytest

from tests.integration.conftest import Deploy
from tests.integration.counting import ADD_AND_TELL, assert_conserved, assert_tallied, increments, send_all, sums, values
from tests.integration.ledgers import SOON
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

MESSAGES = 100
#: Of those that are killed at their time limit, or nearly, and of those beside them.
LINGERING, BESIDE = 16, 60
LINGER = "counter.linger_and_tell"


@pytest.mark.parametrize(
    ("engine", "pool"),
    matrix(("sqlite", "solo"), ("postgresql", "prefork"), ("mariadb", "prefork"), ("redis", "prefork")),
)
def test_soft_time_limits_leave_nothing_behind(deploy: Deploy, engine: str, pool: str) -> None:
    deployment = deploy("interrupted", "redis", engine)
    deployment.start(pool, 2).wait_ready()
    wanted = increments(MESSAGES, counters=30)
    send_all(deployment, ADD_AND_TELL, wanted)
    assert_conserved(deployment, wanted)
    assert len(deployment.noted("interrupted")) >= MESSAGES / 20  # or nothing was tested: fewer are where steps are quick
    assert deployment.noted("unsound") == []


@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "rabbitmq"), ("redis", "redis")))
def test_hard_time_limits_lose_and_double_nothing(deploy: Deploy, engine: str, broker: str) -> None:
    """Each message has its effect once, or is one dead letter."""
    deployment = deploy("counters", broker, engine, **SOON)
    deployment.start("prefork", 4).wait_ready()
    lingering, beside = increments(LINGERING, counters=4), increments(BESIDE, counters=8, seed=1)
    chance, sent = random.Random(engine), {}
    for number, (name, amount) in enumerate(lingering):
        seconds = 30 if number == 0 else 1 - chance.uniform(0, 0.05)  # about as long as the limit
        sent[deployment.send(LINGER, name=name, amount=amount, seconds=seconds)] = name, amount
        send_all(deployment, ADD_AND_TELL, beside[number :: len(lingering)])
    deployment.wait_handled(LINGER, len(lingering))
    deployment.wait_handled(ADD_AND_TELL, len(beside))
    entries = [entry for name in sums(lingering) for entry in deployment.history("counter", name)]
    failed = {entry.message_id for entry in entries if entry.outcome == "failed"}
    assert failed  # or nothing was tested
    done = beside + [each for message_id, each in sent.items() if message_id not in failed]
    assert_tallied(deployment, done)
    assert values(deployment, "counter", sums(lingering + beside)) == sums(done)
    assert (deployment.handled(LINGER), deployment.handled(ADD_AND_TELL)) == (len(lingering), len(beside))
    wait_until(lambda: _dead_letters(deployment) == sorted(failed), deployment.describe)  # that of a run which wins goes away


def _dead_letters(deployment: Deployment) -> list[str]:
    return sorted(dead_letter.message_id for dead_letter in deployment.backend.dead.list(100))
