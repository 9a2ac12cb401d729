"""Messages per second with ``sagas-redis://``, against a plain task with kombu's own transport: same messages, same server."""

from functools import partial
from typing import Any

import pytest

from tests.benchmarks.conftest import Report
from tests.benchmarks.rates import in_turn, middle, rate, ratio, spread
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment

#: Tasks per second as a part of those of a no-op task on kombu's transport, at least: by task and backend.
TARGETS = {("plain.add", "memory://"): 1.2, ("counter.add", "redis"): 3.0, ("counter.add", "postgresql"): 2.5}


@pytest.mark.parametrize(("task", "backend"), TARGETS)
def test_what_is_received_in_bulk_against_a_no_op_task_on_kombus_transport(
    deploy: Deploy, report: Report, task: str, backend: str
) -> None:
    plain = deploy("plain", "redis", "memory://")
    noop, done = in_turn(
        [partial(rate, plain, "plain.add", "prefork"), partial(rate, _in_bulk(deploy, task, backend), task, "prefork")]
    )
    reached, target = ratio(done, noop), TARGETS[task, backend]
    report(
        f"{'no-op task' if task == 'plain.add' else f'step, {backend}'}, sagas-redis:// against no-op, redis://, prefork 2",
        f"{reached:.2f}  ({middle(done)} of {middle(noop)} /s; {spread(done, noop)})",
        f">= {target:.2f}",
        reached >= target,
        reached,
    )


def _in_bulk(deploy: Deploy, task: str, backend: str) -> Deployment:
    app: dict[str, Any] = {"plain.add": "plain", "counter.add": "timed_counters"}
    deployment = deploy(app[task], "redis", backend)
    deployment.settings["broker_read_url"] = f"sagas-{deployment.broker}"
    return deployment
