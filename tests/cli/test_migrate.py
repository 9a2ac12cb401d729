"""``celery sagas migrate``."""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.memory.instances import MemoryInstances
from tests.apps import NewApp, backend_of
from tests.cli.test_describe import run


@pytest.fixture
def backend(app: Celery) -> MemoryBackend:
    """The backend of an app with a saga that was renamed."""

    class Order(Saga, correlate_by="order_id", formerly="purchase"):
        order_id: str

    backend = backend_of(app)
    assert isinstance(backend, MemoryBackend)
    return backend


def test_it_says_what_was_done(app: Celery, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        backend, "migrate", lambda: ["The column touched_in was added.", "An \x1b[2J index was made."], raising=False
    )
    result = run(app, "migrate")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "The column touched_in was added.",
        r"An \x1b[2J index was made.",
        f"{backend.url} has the layout of this release.",
    ]


def test_programs_are_told_what_was_done(app: Celery, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "migrate", lambda: ["The column touched_in was added."], raising=False)
    monkeypatch.setattr(MemoryInstances, "index", lambda self, name, limit, after="": "" if after else "1")
    monkeypatch.setattr(import_module("celery_sagas.cli.migrate"), "_REPORT_S", 0)
    result = run(app, "migrate", "--json")
    assert json.loads(result.stdout) == {"backend": backend.url, "done": ["The column touched_in was added."], "error": None}
    assert "order: about 200 instances were looked at." in result.stderr
    assert run(app, "migrate", "--json", "--sql").exit_code == 2


def test_instances_are_indexed_under_all_names(app: Celery, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    def index(self: MemoryInstances, name: str, limit: int, after: str = "") -> str:
        calls.append((name, after))
        return {"": "1", "1": "2", "2": ""}[after]

    monkeypatch.setattr(MemoryInstances, "index", index)
    monkeypatch.setattr(import_module("celery_sagas.cli.migrate"), "_REPORT_S", 0)
    result = run(app, "migrate")
    assert calls == [(name, after) for name in ("order", "purchase") for after in ("", "1", "2")]
    assert "order: about 400 instances were looked at." in result.output


def test_statements_are_printed(app: Celery) -> None:
    app.conf.saga_backend = "postgresql://nowhere/x"
    result = run(app, "migrate", "--sql")
    assert result.exit_code == 0, result.output
    assert "ALTER TABLE saga_instance ADD COLUMN touched_in" in result.output


def test_backend_without_statements(app: Celery, backend: MemoryBackend) -> None:
    assert run(app, "migrate", "--sql").output == "Nothing is run.\n"


def test_backend_that_cannot_be_migrated(app: Celery, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def migrate(self: MemoryBackend) -> Sequence[str]:
        raise ConfigurationError("nothing is stored there yet", "Start a worker")

    monkeypatch.setattr(MemoryBackend, "migrate", migrate)
    result = run(app, "migrate")
    assert (result.exit_code, result.output.strip()) == (1, "Error: nothing is stored there yet. Start a worker.")
    result = run(app, "migrate", "--json")
    about = {"backend": backend.url, "done": [], "error": "nothing is stored there yet. Start a worker."}
    assert (result.exit_code, json.loads(result.stdout)) == (1, about)


def test_others_are_migrated_if_one_backend_is_away(new_app: NewApp, tmp_path: Path) -> None:
    backends = {"here": "memory://here", "new": f"sqlite:///{tmp_path}/new.db"}
    app = new_app(saga_backends={name: {"backend": url} for name, url in backends.items()})
    app.conf.saga_backend = "redis://127.0.0.1:1/0"

    class Order(Saga, correlate_by="order_id", backend="new"):
        order_id: str

    class Parcel(Saga, correlate_by="parcel_id", backend="here"):
        parcel_id: str

    result = run(app, "migrate")
    assert result.exit_code == 1
    done, away, new = result.output.splitlines()
    assert done == "memory://here has the layout of this release."
    assert away.startswith("Error: The saga backend redis://127.0.0.1:1/0 is unavailable: ")
    assert new.startswith(f"Error: nothing is stored in sqlite:///{tmp_path}/new.db yet")
