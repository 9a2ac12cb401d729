"""The example's sagas in virtual time: its own tasks, its own books, and no worker."""

import importlib
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import _state

from celery_sagas.core.registry import registry
from celery_sagas.testing import SagaHarness
from tests.folders import in_memory

EXAMPLE = Path(__file__).parents[2] / "example_project"


NAMES = ("app", "bank", "bookings", "ledger", "orders", "payments", "shipping", "till", "travel", "trips")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The shop's modules, imported as its worker does, for the tests of one module alone, from a folder with nothing else."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(EXAMPLE, folder / EXAMPLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    with _definitions_of_their_own(), _importing_from(folder):
        with warnings.catch_warnings():  # an app that another test has left may know the tasks of an import before
            warnings.filterwarnings("ignore", "Task name .* is already registered")
            modules = SimpleNamespace(**{name: importlib.import_module(f"example_project.{name}") for name in NAMES})
        yield modules
        modules.app.app.close()


@contextmanager
def _definitions_of_their_own() -> Iterator[None]:
    """Forget the sagas and tasks that are defined meanwhile, and know those again that were defined before."""
    kept = dict(registry.sagas), dict(registry.steps), dict(registry.aggregators)
    for table in (registry.sagas, registry.steps, registry.aggregators):
        table.clear()
    shared, current = set(_state._on_app_finalizers), _state._get_current_app() if _state.default_app else None
    try:
        yield
    finally:
        _state._set_current_app(current)
        _state._on_app_finalizers.intersection_update(shared)
        registry.sagas, registry.steps, registry.aggregators = kept


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "example_project"]:
            del sys.modules[name]


@pytest.fixture
def shop(modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The shop, with a bank, a ledger and travel services of this test."""
    with in_memory(otherwise=tmp_path) as folder:
        for name in ("bank", "ledger", "bookings"):
            monkeypatch.setenv(f"SHOP_{name.upper()}", str(folder / f"{name}.sqlite3"))
        modules.folder = folder
        yield modules


@pytest.fixture
def harness(shop: Any) -> Iterator[SagaHarness]:
    """A harness for the shop."""
    with SagaHarness(shop.app.app) as harness:
        yield harness
