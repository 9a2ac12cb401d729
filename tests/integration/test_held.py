"""Messages that a worker can neither handle nor keep: they wait, and keep nobody else from being handled."""

import re

import pytest

from celery_sagas.worker.headers import STEP
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: More than a worker prefetches.
UNKNOWN = 12
NAMES = ["a", "b", "c", "d", "e"]
#: For how long they are held, time after time. Seconds.
PAUSES = [3, 6, 12, 24, *[30] * 10]


def pauses(deployment: Deployment) -> list[int]:
    """Return for how long messages were held, as the worker tells."""
    return [int(seconds) for seconds in re.findall(r"is requeued in (\d+) s", deployment.workers[0].log)]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_others_are_handled_while_the_store_is_away(deploy: Deploy, broker: str, pool: str) -> None:
    """It is tried more and more seldom, and each message is kept once it is back."""
    deployment = deploy("bystanders", broker, "sqlite")
    away = deployment.folder / "away"
    deployment.settings["saga_backend"] = f"sqlite:///{away}/sagas.sqlite3"
    worker = deployment.start(pool, 1).wait_ready()
    for number in range(UNKNOWN):
        deployment.client.send_task("absent.step", task_id=f"m{number}", headers={STEP: True})
    for name in NAMES:
        deployment.send("bystander.work", name=name)

    wait_until(lambda: sorted(deployment.noted("worked")) == NAMES, deployment.describe)
    wait_until(lambda: len(pauses(deployment)) > 1, deployment.describe)
    away.mkdir()

    wait_until(lambda: worker.log.count("is kept as the dead letter") == UNKNOWN, deployment.describe)
    assert pauses(deployment) == PAUSES[: len(pauses(deployment))]
    wait_until(lambda: deployment.queued() + deployment.unacknowledged() == 0, deployment.describe)
    assert worker.stop() == 0
