"""Workers that must not start: they say why, end with an error, and consume nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Deploy


@dataclass(frozen=True)
class Wrong:
    """A deployment that cannot work."""

    says: str  #: part of the last line of the log
    settings: dict[str, Any] = field(default_factory=dict)
    without: str = ""  #: a module that cannot be imported


WRONG = {
    "value": Wrong("saga_conflict_retries: ", {"saga_conflict_retries": -1}),
    "name": Wrong("unknown setting saga_bakend", {"saga_bakend": "memory://"}),
    "scheme": Wrong("no saga backend serves the scheme oracle://", {"saga_backend": "oracle://localhost/x"}),
    "driver": Wrong("celery-sagas[postgresql]", {"saga_backend": "postgresql://localhost/x"}, without="psycopg"),
    "postgresql": Wrong("is unavailable: ", {"saga_backend": "postgresql://u:secret@127.0.0.1:1/x"}),
    "mariadb": Wrong("is unavailable: ", {"saga_backend": "mysql://u:secret@127.0.0.1:1/x"}),
    "memory": Wrong("--pool=", {"saga_backend": "memory://"}),
    "autocommit": Wrong("isolation_level", {"saga_backend_options": {"isolation_level": "AUTOCOMMIT"}}),
    "schema": Wrong("sagas schema", {"saga_create_schema": False}),
}


def test_they_end_before_they_consume(deploy: Deploy, tmp_path: Path) -> None:
    deployments = {name: deploy("counters", "redis", "sqlite", **wrong.settings) for name, wrong in WRONG.items()}
    workers = {}
    for name, deployment in deployments.items():
        if WRONG[name].without:
            deployment.paths = [_without(WRONG[name].without, tmp_path)]
        deployment.send("counter.add", name="a", amount=1)
        workers[name] = deployment.start("prefork", 2)
    for name, worker in workers.items():
        assert worker.wait_ended() != 0, name
        assert not worker.is_ready, name
        assert WRONG[name].says in worker.log.rstrip().splitlines()[-1], worker.log
        assert "secret" not in worker.log
        assert deployments[name].queued() == 1, name


def _without(module: str, folder: Path) -> str:
    """Return a folder whose modules stand before others and cannot be imported."""
    broken = folder / "broken"
    broken.mkdir(exist_ok=True)
    (broken / f"{module}.py").write_text(f"raise ImportError('there is no {module} here')\n")
    return str(broken)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_memory_serves_one_process(deploy: Deploy, pool: str) -> None:
    deployment = deploy("counters", "redis", "memory://")
    worker = deployment.start(pool, 2).wait_ready()
    sent = deployment.send("counter.add_and_tell", name="a", amount=1)
    worker.wait_logged(f"add_and_tell[{sent}] succeeded")
    worker.wait_logged("tally.told[")
    assert deployment.failures() == []
