"""What a test sees in virtual time is what happens in a worker: the same messages leave the same journal."""

import importlib.util
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celery_sagas.testing.harness.harness import SagaHarness
from tests.apps import NewApp, definitions, new_app
from tests.integration.conftest import Deploy
from tests.waiting import wait_until

__all__ = ["definitions", "new_app"]

APP = Path(__file__).parent / "apps" / "journeys.py"
#: The steps of an instance, each with its outcome and the version after it; and those that changed nothing, in any order.
Journal = tuple[list[tuple[str, str, int]], Counter[tuple[str, str]]]
SAGAS = ("order", "invoice", "ending")


@pytest.fixture
def journeys(definitions: None) -> Iterator[ModuleType]:
    """The module of the worker's app, imported into this process."""
    spec: Any = importlib.util.spec_from_file_location("journeys", APP)
    module = sys.modules["journeys"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["journeys"]


@pytest.fixture
def in_virtual_time(journeys: ModuleType, new_app: NewApp) -> dict[tuple[str, str], Journal]:
    """The journals of all orders in a harness, by saga and key."""
    journeys.define(app := new_app())
    sagas = {"order": journeys.Order, "invoice": journeys.Invoice, "ending": journeys.Ending}
    with SagaHarness(app) as harness:
        for how in journeys.HOWS:
            for _ in range(2):
                app.send_task("order.begin", kwargs={"order_id": how, "how": how})
        harness.advance(journeys.timedelta(hours=1))
        assert [dead.task for dead in harness.dead] == ["order.quoted"]
        assert harness.pending == []
        entries = {(name, how): harness.journal(sagas[name], how) for name in SAGAS for how in journeys.HOWS}
    return {which: _journal(found) for which, found in entries.items()}


def _journal(entries: Any) -> Journal:
    lines = [(entry.step, str(getattr(entry, "kind", "") or entry.outcome), entry.version) for entry in entries]
    return [line for line in lines if line[2]], Counter(line[:2] for line in lines if not line[2])


@pytest.mark.parametrize("backend", ["redis", "postgresql"])
def test_worker_leaves_the_same_journal(
    deploy: Deploy, journeys: ModuleType, in_virtual_time: dict[tuple[str, str], Journal], backend: str
) -> None:
    deployment = deploy("journeys", "redis", backend)
    deployment.start("prefork").wait_ready()
    for how in journeys.HOWS:
        for _ in range(2):
            deployment.send("order.begin", order_id=how, how=how)
    deployment.wait_handled("order.begin", 2 * len(journeys.HOWS))
    for saga, key in [which for which, (steps, _) in in_virtual_time.items() if steps and which != ("order", "broken")]:
        wait_until(partial(deployment.outcome, saga, key), deployment.describe)
    wait_until(lambda: deployment.backend.dead.count() == 1, deployment.describe)

    def journals() -> dict[tuple[str, str], Journal]:
        return {(saga, key): _journal(deployment.history(saga, key)) for saga, key in in_virtual_time}

    def count_of(journals: dict[tuple[str, str], Journal]) -> int:
        return sum(len(steps) + in_vain.total() for steps, in_vain in journals.values())

    wait_until(lambda: count_of(journals()) >= count_of(in_virtual_time), deployment.describe)
    found = journals()
    assert found == in_virtual_time
    assert len([steps for steps, _ in found.values() if steps]) == 10
    assert [dead.task for dead in deployment.backend.dead.list(9)] == ["order.quoted"]
