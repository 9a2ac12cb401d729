"""Steps per second through a real worker, against plain tasks: same options, same messages, same broker."""

from functools import partial

import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.rates import in_turn, middle, rate, ratio, spread
from tests.integration.conftest import Deploy

#: Steps per second as a part of the no-op task's, at least: by backend and broker.
TARGETS = {
    ("redis", "redis"): 1.3,
    ("postgresql", "redis"): 1.3,
    ("sqlite", "redis"): 1.3,
    ("mariadb", "redis"): None,
    ("postgresql", "rabbitmq"): 1.0,
}
#: Steps per second as a part of those of a task that does the same by hand, safe from other messages.
BY_HAND = {"redis": ("plain.locked", "a Redis lock"), "postgresql": ("plain.rows", "SQLAlchemy Core")}
#: The least ratio by backend, and by the transport of both tasks. kombu's own, with nothing behind it, receives hardly more than
#: twice as many messages as a task with a Redis lock handles.
BY_HAND_TARGETS = {("redis", "redis://"): None, ("redis", "sagas-redis://"): 2.0, ("postgresql", "redis://"): 2.0}


def measure(deploy: Deploy, report: Report, backend: str, broker: str, pool: str, target: float | None) -> None:
    steps, plain = deploy("timed_counters", broker, backend), deploy("plain", broker, "memory://")
    noop, done = in_turn([partial(rate, plain, "plain.add", pool), partial(rate, steps, "counter.add", pool)])
    reached = ratio(done, noop)
    report(
        f"step against no-op, {backend}, {pool} 2, {broker} broker",
        f"{reached:.2f}  ({middle(done)} of {middle(noop)} /s; {spread(done, noop)})",
        "" if target is None else f">= {target:.2f}",
        None if target is None else reached >= target,
        reached,
    )


@pytest.mark.parametrize(("backend", "broker"), TARGETS)
def test_a_step_against_a_task_that_does_nothing(deploy: Deploy, report: Report, backend: str, broker: str) -> None:
    measure(deploy, report, backend, broker, "prefork", TARGETS[backend, broker])


@pytest.mark.parametrize(("backend", "pool"), [("memory://", "threads"), ("redis", "threads"), ("redis", "solo")])
def test_a_step_against_a_task_that_does_nothing_in_one_process(deploy: Deploy, report: Report, backend: str, pool: str) -> None:
    measure(deploy, report, backend, "redis", pool, None)


@pytest.mark.parametrize(("backend", "transport"), BY_HAND_TARGETS)
def test_a_step_against_a_task_that_does_the_same_by_hand(deploy: Deploy, report: Report, backend: str, transport: str) -> None:
    """Broker and backend are one server on Redis, for the hand-written task too."""
    (task, how), target = BY_HAND[backend], BY_HAND_TARGETS[backend, transport]
    steps, plain = deploy("timed_counters", "redis", backend), deploy("plain", "redis", backend)
    for deployment in (steps, plain):
        deployment.settings["broker_read_url"] = deployment.broker.replace("redis://", transport)
    by_hand, done = in_turn([partial(rate, plain, task, "prefork"), partial(rate, steps, "counter.add", "prefork")])
    reached = ratio(done, by_hand)
    report(
        f"step against {how} by hand, both on {transport}, prefork 2",
        f"{reached:.2f}  ({middle(done)} of {middle(by_hand)} /s; {spread(done, by_hand)})",
        "" if target is None else f">= {target:.2f}",
        None if target is None else reached >= target,
        reached,
    )
