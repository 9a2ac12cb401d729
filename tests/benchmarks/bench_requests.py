"""What it costs to ask: against a message that is only sent; and a thousand members of a gather against as many tasks."""

import statistics
import time
from functools import partial

import pytest

from tests.benchmarks.bench_sending import rate_of
from tests.benchmarks.conftest import APPS, Report
from tests.benchmarks.rates import MESSAGES, in_turn, middle, ratio
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: How much longer a step may take that asks, and waits for the answer until a deadline.
ASKING = 1.5
#: How much longer a gather may take than plain tasks, as many as it has members.
MEMBERS, GATHERING = 1_000, 2.0
ROUNDS = 5


@pytest.mark.parametrize(("engine", "broker"), [("redis", "redis"), ("postgresql", "rabbitmq")])
def test_a_request_against_a_message_that_is_only_sent(deploy: Deploy, report: Report, engine: str, broker: str) -> None:
    deployment = deploy("sending", broker, engine)
    deployment.settings["task_routes"] = {"told": {"queue": f"{deployment.name}-told"}}
    # one message for each counter in a round: an instance waits for few answers, since nobody gives any
    sent, asked = in_turn([partial(rate_of, deployment, f"counter.{how}", MESSAGES) for how in ("send", "ask")])
    reached = ratio(sent, asked)
    report(
        f"step that asks against one that sends, {engine}, {broker} broker",
        f"{reached:.2f}  ({middle(asked)} against {middle(sent)} /s)",
        f"<= {ASKING}",
        reached <= ASKING,
    )


@pytest.mark.parametrize(("engine", "broker"), [("redis", "redis"), ("postgresql", "redis")])
def test_a_gather_against_plain_tasks(deploy: Deploy, report: Report, engine: str, broker: str) -> None:
    deployment = deploy("gathering", broker, engine)
    deployment.paths = [str(APPS)]
    deployment.settings["worker_prefetch_multiplier"] = 4
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    times = [(_plain(deployment, number), _gathered(deployment, number)) for number in range(ROUNDS)]
    assert deployment.failures() == []
    reached = statistics.median(gathered / plain for plain, gathered in times)
    plain_s, gathered_s = (statistics.median(column) for column in zip(*times, strict=True))
    report(
        f"gather of {MEMBERS} against as many tasks, {engine}, {broker} broker",
        f"{reached:.2f}  ({gathered_s:.2f} against {plain_s:.2f} s)",
        f"<= {GATHERING}",
        reached <= GATHERING,
    )


def _plain(deployment: Deployment, number: int) -> float:
    """Return the seconds from the first message that is published to the last task's end."""
    began = time.time()
    deployment.send("gathering.publish", name=f"plain {number}", members=MEMBERS)
    return _last(deployment, f"plain {number}", MEMBERS) - began


def _gathered(deployment: Deployment, number: int) -> float:
    """Return the seconds from the message that makes the saga ask to the step that has all answers."""
    began = time.time()
    deployment.send("asker.ask", name=f"gather {number}", members=MEMBERS)
    return _last(deployment, f"gather {number}", 1) - began


def _last(deployment: Deployment, name: str, count: int) -> float:
    """Return when the last of so many notes was written."""
    wait_until(lambda: len(deployment.noted(name)) >= count, deployment.describe, deadline_s=120)
    return max(float(line) for line in deployment.noted(name))
