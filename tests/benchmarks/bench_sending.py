"""What it costs that a step sends a message: with its commit, against the same step and a plain ``delay()``."""

from functools import partial

import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.rates import COUNTERS, in_turn, middle, rate, ratio
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment

#: How much longer a step may take that sends with its commit.
TARGET = 1.0


@pytest.mark.parametrize(
    ("engine", "broker"), [("sqlite", "redis"), ("postgresql", "redis"), ("redis", "redis"), ("postgresql", "rabbitmq")]
)
def test_a_step_that_sends_against_one_that_publishes(deploy: Deploy, report: Report, engine: str, broker: str) -> None:
    deployment = deploy("sending", broker, engine, saga_direct_publish="allow")
    # a queue that nobody consumes, and that a round does not wait for
    deployment.settings["task_routes"] = {"told": {"queue": f"{deployment.name}-told"}}
    raw, sent = in_turn([partial(rate_of, deployment, f"counter.{how}") for how in ("delay", "send")])
    reached = ratio(raw, sent)
    report(
        f"step that sends against step and delay(), {engine}, {broker} broker",
        f"{reached:.2f}  ({middle(sent)} against {middle(raw)} /s)",
        f"<= {TARGET}",
        reached <= TARGET,
    )


def rate_of(deployment: Deployment, task: str, counters: int = COUNTERS) -> float:
    """Return the steps per second; what they send goes to a queue that nobody consumes."""
    try:
        return rate(deployment, task, "prefork", counters)
    finally:
        with deployment.client.connection_for_write() as connection, connection.channel() as channel:
            channel.queue_delete(f"{deployment.name}-told")
