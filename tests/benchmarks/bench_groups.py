"""Groups per second of an aggregator whose groups are all due at once."""

from uuid import uuid4

import pytest

from celery_sagas.stores.items import Addition, NewItem, Rules
from tests.benchmarks.conftest import APPS, Report
from tests.benchmarks.rates import middle
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: In all, in one group, and in one call to the store.
GROUPS, ITEMS, AT_ONCE = 100_000, 10, 1_000
#: Groups per second, at least, on a machine whose no-op task runs 1,000 times per second or more.
TARGET = 1_000
#: Groups between two looks at the rate.
_EVERY = 5_000
DEADLINE_S = 900
RULES = Rules("grouped.collect", within_ms=1)


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize(("backend", "target"), [("redis", TARGET), ("postgresql", None)])
def test_many_groups_that_are_due_at_once(deploy: Deploy, report: Report, backend: str, target: int | None) -> None:
    deployment = deploy("grouped", "redis", backend)
    _fill(deployment)
    deployment.paths = [str(APPS)]
    worker = deployment.start("prefork", 2, level="WARNING").wait_ready()
    wait_until(lambda: len(deployment.noted("groups")) == GROUPS, deployment.describe, deadline_s=DEADLINE_S)
    assert worker.stop() == 0
    flushed = sorted(float(when) for when, _ in map(str.split, deployment.noted("groups")))
    assert not any(deployment.backend.buffers.count("grouped.collect"))
    rates = [_EVERY / (last - first) for first, last in zip(flushed[::_EVERY], flushed[_EVERY::_EVERY], strict=False)]
    reached = (GROUPS - 1) / (flushed[-1] - flushed[0])
    report(
        f"groups of {ITEMS} items, {GROUPS:,} due at once, {backend}",
        f"{reached:.0f} /s  ({min(rates):.0f} to {max(rates):.0f}, median {middle(rates)})",
        "" if target is None else f">= {target:,} /s",
        None if target is None else reached >= target,
    )


def _fill(deployment: Deployment) -> None:
    deployment.backend.prepare(create_schema=True, processes=1)
    for first in range(0, GROUPS, AT_ONCE):
        groups = range(first, first + AT_ONCE)
        items = [tuple(NewItem(uuid4().hex, str(group * ITEMS + number)) for number in range(ITEMS)) for group in groups]
        deployment.backend.aggregates.insert(
            RULES, [Addition(str(group), added) for group, added in zip(groups, items, strict=True)]
        )
