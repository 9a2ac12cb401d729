"""Workers that must not start: they say why, end with an error, and consume nothing."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_sagas.stores.redis.placement import LAYOUT as REDIS_LAYOUT
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.tables import LAYOUT
from tests import servers
from tests.integration.conftest import ENGINES, Deploy
from tests.integration.worker import Deployment


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
    "redis": Wrong("is unavailable: ", {"saga_backend": "redis://:secret@127.0.0.1:1/0"}),
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
        assert "secret" not in worker.output + worker.log
        assert deployments[name].queued() == 1, name


@pytest.mark.parametrize("engine", ENGINES)
def test_what_another_release_has_stored_is_left_alone(deploy: Deploy, tmp_path: Path, engine: str) -> None:
    """Older or newer, by workers and by the relay alone: the release that has stored it finds it as it was."""
    with _database(engine, tmp_path) as url:
        deployment = deploy("counters", "redis", url)
        deployment.start("prefork", 2).wait_ready()
        deployment.send("counter.add", name="a", amount=1)
        deployment.wait_handled("counter.add", 1)
        assert deployment.workers[0].stop() == 0
        own = LAYOUTS[engine]
        deployment.send("counter.add", name="a", amount=2)
        for other in (own - 1, own + 1):
            _set_layout(deployment, own, other)
            for refused in (deployment.start("prefork", 2), deployment.start_relay()):
                assert refused.wait_ended() != 0
                assert not refused.is_ready
                assert re.search(rf"layout \W*{other}\b.* {own}\b", refused.log.rstrip().splitlines()[-1]), refused.log
            _set_layout(deployment, other, own)
        assert deployment.queued() == 1
        assert deployment.state("counter", "a") == {"name": "a", "value": 1, "count": 1}
        deployment.start("prefork", 2)
        deployment.wait_handled("counter.add", 2)
        assert deployment.state("counter", "a") == {"name": "a", "value": 3, "count": 2}
        assert deployment.failures() == []


#: The layout that this release knows.
LAYOUTS = {**dict.fromkeys(("sqlite", "postgresql", "mariadb"), LAYOUT.version), "redis": REDIS_LAYOUT.version}


@contextmanager
def _database(engine: str, folder: Path) -> Iterator[str]:
    """Make a database for this test alone: its tables have one layout, whatever the prefix."""
    if engine == "sqlite":
        yield f"sqlite:///{folder}/sagas.sqlite3"
    else:
        with servers.database(engine) as url:
            yield url


def _set_layout(deployment: Deployment, before: int, after: int) -> None:
    """Have it that another release has stored everything."""
    backend: Any = deployment.backend
    if isinstance(backend, SqlBackend):
        with backend.database.connect() as connection:
            connection.exec_driver_sql(f"UPDATE saga_layout SET version = {after}, oldest = {after}")
            assert connection.exec_driver_sql("SELECT version FROM saga_layout").scalar() == after
    else:
        with redis.Redis.from_url(deployment.backend_url) as client:
            meta = f"{{{deployment.name}:meta}}"
            assert client.hget(meta, "layout").split()[0] == str(before).encode()
            client.hset(meta, "layout", f"{after} {after} 1")


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
