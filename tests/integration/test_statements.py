"""What a step costs: counted in statements, end to end."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests.integration.conftest import ENGINES
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


#: The most statements that a step of an existing instance may take, ``BEGIN`` and ``COMMIT`` included.
MOST = {"postgresql": 2, "mariadb": 6, "sqlite": 6}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """An engine's name."""
    return str(request.param)


@pytest.fixture
def statements(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[list[str]]:
    """The statements that were run since the list was last cleared."""
    app = Celery(unique("app"), broker="memory://", set_as_current=True)
    app.conf.saga_backend = f"sqlite:///{tmp_path}/x.sqlite3" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    app.conf.saga_prefix = unique("sagas")
    backend = runtime_of(app).backend
    backend.prepare(create_schema=True, processes=1)
    run: list[str] = []
    backend.database.observers.append(run.append)
    yield run
    close_runtime(app)
    app.close()
    app.set_default()


def test_a_step_of_an_existing_instance(engine: str, statements: list[str]) -> None:
    name = str(uuid.uuid4())
    meter(name=name)
    statements.clear()
    meter(name=name)
    assert len(statements) <= MOST[engine], "\n".join(statements)
    assert len([text for text in statements if text.lstrip().startswith("SELECT")]) == 1  # one round trip to find


def test_a_step_of_an_instance_found_by_an_alternate_key(engine: str, statements: list[str]) -> None:
    name, alias = str(uuid.uuid4()), str(uuid.uuid4())
    meter(name=name)
    call(name=name, alias=alias)
    statements.clear()
    meter_alias(alias=alias)
    assert len(statements) <= MOST[engine], "\n".join(statements)
