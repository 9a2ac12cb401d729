"""``celery sagas check`` as a process that is killed while it stores instances again."""

import json
from typing import Any

import pytest

from celery_sagas.testing.samples import effects, new_record
from tests.integration.conftest import Deploy
from tests.integration.matrices import matrix
from tests.waiting import wait_until

COUNTERS, BEFORE = 300, 100
CHECK = ("sagas", "check", "counter", "--reason", "release 7", "--actor", "ann")


@pytest.mark.parametrize(("way", "again"), [("--upgrade", COUNTERS - BEFORE), ("--rewrite", COUNTERS)])
@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "redis"), ("redis", "redis")))
def test_killed_in_the_middle(deploy: Deploy, engine: str, broker: str, way: str, again: int) -> None:
    """What it has stored is whole, and so is the rest: the same command goes on."""
    deployment = deploy("operated", broker, engine)
    deployment.prepare()
    keys = [str(number) for number in range(COUNTERS)]
    for key in keys:
        new = new_record(key, names=("counter",), data=json.dumps({"name": key}), pending="{}")._replace(schema_version=1)
        deployment.backend.sagas.insert(new, effects(new))
    command = deployment.start_command(*CHECK, way, CELERY_SAGAS_TEST_ACTS=str(BEFORE))
    wait_until(lambda: deployment.noted("acts") or not command.is_running, deployment.describe)
    command.kill()
    states = [deployment.state("counter", key) for key in keys]
    stored = [state for key, state in zip(keys, states, strict=True) if state == whole(key)]
    old = [state for key, state in zip(keys, states, strict=True) if state == {"name": key}]
    assert (len(stored), len(old)) == (BEFORE, COUNTERS - BEFORE), command.describe()
    counted = f"{COUNTERS} checked, 0 would fail, {COUNTERS - BEFORE} of an older form, {again} stored again."
    assert counted in deployment.command(*CHECK, way)
    assert [deployment.state("counter", key) for key in keys] == list(map(whole, keys))
    entries = deployment.backend.audit.recent(500, names=["counter"]).entries
    assert len(entries) == BEFORE + again
    assert {entry.key for entry in entries} == set(keys)


def whole(key: str) -> dict[str, Any]:
    """Return a state as this code stores it: with the fields that came later."""
    return {"name": key, "value": 0, "count": 0}
