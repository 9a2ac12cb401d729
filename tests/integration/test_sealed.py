"""Workers whose stores hold what they encrypt, and one that has another key."""

import json

import pytest
from cryptography.fernet import Fernet

from celery_sagas.core.encoding import MARK
from celery_sagas.stores.records import Record
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment, Worker
from tests.waiting import wait_until

SECRET = "tachycardia"
KEY, OTHER = Fernet.generate_key().decode(), Fernet.generate_key().decode()


@pytest.fixture(params=[("rabbitmq", "postgresql"), ("redis", "redis")], ids="-".join)
def deployment(request: pytest.FixtureRequest, deploy: Deploy) -> Deployment:
    """A deployment of which this process sees what is stored, as it is stored."""
    broker, engine = request.param
    return deploy("sealed", broker, engine, saga_codec="celery_sagas.contrib.fernet:codec", saga_relay_interval=0.2)


def start(deployment: Deployment, *keys: str) -> Worker:
    worker = deployment.start("prefork", 1, SAGA_FERNET_KEYS=",".join(keys))
    worker.wait_ready()
    return worker


def patient(deployment: Deployment) -> Record:
    record = deployment.record("patient", "7")
    assert record is not None, deployment.describe()
    return record


def stored(deployment: Deployment) -> str:
    """Return all texts that are stored."""
    backend = deployment.backend
    letters, rows = backend.dead.list(99), backend.outbox.claim_due("a test", 99, 1)
    return repr([patient(deployment), deployment.history("patient", "7"), letters, rows])


def test_another_key_keeps_the_message_and_shows_nothing(deployment: Deployment) -> None:
    first = start(deployment, KEY)
    deployment.send("patient.admit", number="7", diagnosis=SECRET)
    wait_until(lambda: deployment.record("patient", "7"), deployment.describe)
    first.stop()
    record = patient(deployment)
    assert record.data.startswith(MARK)
    assert record.pending.startswith(MARK)

    other = start(deployment, OTHER)
    deployment.send("patient.examine", number="7", note=f"{SECRET} again")
    wait_until(lambda: deployment.backend.dead.list(9), deployment.describe)
    other.stop()
    (letter,) = deployment.backend.dead.list(9)
    assert letter.error == "UnreadableState"
    assert "'7' cannot be read: it cannot be decoded by saga_codec. Run this process with the saga_codec" in letter.text
    assert patient(deployment) == record
    assert SECRET not in stored(deployment) + first.log + first.output + other.log + other.output
    assert all(key not in other.log + other.output for key in (KEY, OTHER))

    both = start(deployment, KEY, OTHER)
    retry = deployment.start_command(
        *("sagas", "dead", "retry", "--all", "--reason", "the key is back"), SAGA_FERNET_KEYS=f"{KEY},{OTHER}"
    )
    assert retry.wait_ended() == 0, retry.describe()
    wait_until(lambda: patient(deployment).version == 2, deployment.describe)
    assert deployment.backend.dead.list(9) == []
    show = deployment.start_command("sagas", "show", "patient", "7", "--json", SAGA_FERNET_KEYS=KEY)
    assert show.wait_ended() == 0, show.describe()
    assert json.loads(show.output)["state"]["note"] == f"{SECRET} again"
    assert SECRET not in stored(deployment) + both.log + both.output
