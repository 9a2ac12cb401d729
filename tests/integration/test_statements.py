"""What a step costs: counted in statements, end to end."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests.integration.conftest import ENGINES
from tests.integration.proxy import Proxy
from tests.servers import unique


class Metered(Saga, correlate_by="name", also_by="alias"):
    """A saga with all that costs statements."""

    name: str
    value: int = 0
    alias: str | None = None


@Metered.starts
def meter(metered: Metered, name: str) -> None:
    """Count."""
    metered.value += 1


@Metered.handles(by="alias")
def meter_alias(metered: Metered, alias: str) -> None:
    """Count, found by an alternate key."""
    metered.value += 1


@Metered.handles
def call(metered: Metered, name: str, alias: str) -> None:
    """Change the alternate key."""
    metered.alias = alias


#: The most statements that a step of an existing instance may take, ``BEGIN`` and ``COMMIT`` included; in Redis, scripts.
MOST = {"postgresql": 2, "mariadb": 6, "sqlite": 6, "redis": 2}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """An engine's name."""
    return str(request.param)


@pytest.fixture
def statements(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[list[str]]:
    """The statements that were run since the list was last cleared."""
    url = f"sqlite:///{tmp_path}/x.sqlite3" if engine == "sqlite" else str(request.getfixturevalue(f"{engine}_url"))
    run: list[str] = []
    with app_on(url) as backend:
        seen = backend.client if engine == "redis" else backend.database
        seen.observers.append(run.append)
        yield run


@contextmanager
def app_on(url: str) -> Iterator[Any]:
    """Make an app on this backend the current one until the end of the block."""
    app = Celery(unique("app"), broker="memory://", set_as_current=True)
    app.conf.saga_backend = url
    app.conf.saga_prefix = unique("sagas")
    backend = runtime_of(app).backend
    backend.prepare(create_schema=True, processes=1)
    try:
        yield backend
    finally:
        close_runtime(app)
        app.close()
        app.set_default()


def test_a_step_of_an_existing_instance(engine: str, statements: list[str]) -> None:
    name = str(uuid.uuid4())
    meter(name=name)
    statements.clear()
    meter(name=name)
    assert len(statements) <= MOST[engine], "\n".join(statements)
    assert sum(text.lstrip().startswith(("SELECT", "saga_find")) for text in statements) == 1  # one round trip to find


def test_a_step_of_an_instance_found_by_an_alternate_key(engine: str, statements: list[str]) -> None:
    name, alias = str(uuid.uuid4()), str(uuid.uuid4())
    meter(name=name)
    call(name=name, alias=alias)
    statements.clear()
    meter_alias(alias=alias)
    assert len(statements) <= MOST[engine], "\n".join(statements)


def test_a_step_on_redis_waits_for_two_answers(proxied: Callable[[str], Proxy]) -> None:
    """Counted on the wire, not by those who count themselves."""
    proxy, name = proxied("redis"), str(uuid.uuid4())
    with app_on(proxy.url):
        meter(name=name)
        meter(name=name)  # the server knows the scripts now
        for _ in range(3):
            before = proxy.requests
            meter(name=name)
            assert proxy.requests - before == 2
