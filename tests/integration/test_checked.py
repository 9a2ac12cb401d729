"""``celery sagas check`` as a process that is killed while it stores instances again."""

import json
import signal
from collections.abc import Sequence

import pytest

from celery_sagas.testing.samples import effects, new_record
from tests.integration.conftest import Deploy
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment
from tests.waiting import wait_until

COUNTERS, BEFORE = 300, 100
CHECK = ("sagas", "check", "counter", "--reason", "release 7", "--actor", "ann")


@pytest.mark.parametrize("way", ["--upgrade", "--rewrite"])
@pytest.mark.parametrize(("engine", "broker"), matrix(("postgresql", "redis"), ("redis", "redis")))
def test_killed_in_the_middle(deploy: Deploy, engine: str, broker: str, way: str) -> None:
    """Each instance is stored and in the audit, or neither; the same command goes on, or begins anew if it is to store all."""
    deployment = deploy("operated", broker, engine)
    deployment.prepare()
    keys = [str(number) for number in range(COUNTERS)]
    for key in keys:
        new = new_record(key, names=("counter",), data=json.dumps({"name": key}), pending="{}")._replace(schema_version=1)
        deployment.backend.sagas.insert(new, effects(new))
    command = deployment.start_command(*CHECK, way, CELERY_SAGAS_TEST_LAST_ACT=str(BEFORE))
    assert command.wait_ended() == -signal.SIGKILL, command.describe()
    wait_until(lambda: sorted(stored(deployment, keys)) == sorted(audited(deployment)), deployment.describe)  # the last is sent
    before = stored(deployment, keys)
    old = [key for key in keys if deployment.state("counter", key) == {"name": key}]
    assert BEFORE <= len(before) == COUNTERS - len(old) < COUNTERS
    again = old if way == "--upgrade" else keys
    counted = f"{COUNTERS} checked, 0 would fail, {len(old)} of an older form, {len(again)} stored again."
    assert counted in deployment.command(*CHECK, way)
    assert stored(deployment, keys) == keys
    assert sorted(audited(deployment)) == sorted(before + again)


def stored(deployment: Deployment, keys: Sequence[str]) -> list[str]:
    """Return the keys of the states that are as this code stores them: with the fields that came later."""
    return [key for key in keys if deployment.state("counter", key) == {"name": key, "value": 0, "count": 0}]


def audited(deployment: Deployment) -> list[str]:
    """Return the keys of what was stored again, by the audit, once for each time."""
    return [entry.key for entry in deployment.backend.audit.recent(2 * COUNTERS, names=["counter"]).entries]
