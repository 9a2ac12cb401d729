"""What is stored gets the layout of this release while workers of the release before go on, and are killed."""

import os
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest

from celery_sagas.stores.instances import MOST, Glance, Instances
from celery_sagas.testing.samples import operate
from tests import servers
from tests.integration.conftest import Deploy
from tests.integration.deaths import VISIBILITY
from tests.integration.ledgers import ENTER, SOON, assert_kept, enter
from tests.integration.matrices import matrix
from tests.integration.worker import Deployment, Worker

#: The last commit whose code knows only the layout before that of this release.
BEFORE = "5732cb0"
ROOT = Path(__file__).resolve().parents[2]
#: Messages that are sent before the migration, during it and after it; each instance gets one of each.
PART = 60
INSTANCES = 60


@pytest.fixture(scope="module")
def code_before(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder with the package as it was before this release."""
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "celery_sagas"]
    archive = subprocess.run(command, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of the repository is not here: {archive.stderr.decode()}")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return str(folder)


@pytest.fixture
def url(engine: str, tmp_path: Path) -> Iterator[str]:
    """A database of this test's own: its layout is that of all who use it."""
    if engine == "sqlite":
        yield f"sqlite:///{tmp_path}/sagas.sqlite3"
        return
    with servers.database(engine) as url:
        yield url


@pytest.mark.parametrize(
    ("engine", "broker"),
    matrix(("sqlite", "redis"), ("postgresql", "rabbitmq"), ("mariadb", "rabbitmq"), ("redis", "redis")),
)
def test_workers_of_both_releases_lose_nothing(deploy: Deploy, code_before: str, url: str, broker: str) -> None:
    settings = {"broker_transport_options": VISIBILITY} if broker == "redis" else {}
    deployment = deploy("chaos", broker, url, **SOON, **settings)
    deployment.paths.append(code_before)
    old = [deployment.start(level="WARNING").wait_ready() for _ in range(2)]
    sent = enter(deployment, range(PART), INSTANCES)
    deployment.paths.clear()
    deployment.settings["saga_resend_after"] = 5  # what old workers handle leaves rows, which new relays look at then
    _assert_refused(deployment.start(level="WARNING"))
    sent |= enter(deployment, range(PART, 2 * PART), INSTANCES)
    assert "has the layout of this release" in deployment.command("sagas", "migrate")
    made = operate(deployment.backend)
    new = deployment.start(level="WARNING").wait_ready()
    sent |= enter(deployment, range(2 * PART, 3 * PART), INSTANCES)
    deployment.wait_handled(ENTER, 2 * PART)
    _crash(old[0], broker)
    assert_kept(deployment, sent)
    assert [worker.stop() for worker in old if worker.is_running] == [0] * (1 if broker == "rabbitmq" else 2)
    deployment.command("sagas", "migrate")
    _assert_listed(deployment, "ledger")
    _assert_listed(deployment, "echo")
    assert [each.id for each in deployment.backend.audit.recent(9).entries] == [made.id]
    assert new.is_running


def _crash(worker: Worker, broker: str) -> None:
    """Kill a worker; of one on Redis its pool alone: kombu loses what a worker has popped and not yet noted."""
    if broker == "rabbitmq":
        worker.kill()
        return
    for pid in worker.children():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def _assert_refused(worker: Worker) -> None:
    """A worker of this release says what to do first."""
    assert worker.wait_ended() != 0
    assert "celery -A proj sagas migrate" in worker.log


def _assert_listed(deployment: Deployment, saga: str) -> None:
    """Each instance is listed once, with what was committed last."""
    instances = deployment.backend.instances
    glances = {glance.id: glance for glance in _listed(instances, saga)}
    assert len(glances) == deployment.backend.sagas.count([saga])[saga] == INSTANCES
    for record in instances.read(saga, list(glances)):
        glance = glances[record.id]
        assert (glance.key, glance.version, glance.updated_at) == (record.key, record.version, record.updated_at)


def _listed(instances: Instances, saga: str) -> list[Glance]:
    page = instances.page(saga, MOST)
    assert page.after == ""
    return list(page.instances)
