"""The example's sagas in virtual time: its own tasks, its own books, and no worker."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from celery_sagas.testing import SagaHarness
from tests.apps import definitions_of_their_own
from tests.folders import in_memory

EXAMPLE = Path(__file__).parents[2] / "example_project"


NAMES = ("app", "bank", "bookings", "ledger", "orders", "payments", "shipping", "till", "travel", "trips")


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The shop's modules, imported as its worker does, for the tests of one module alone, from a folder with nothing else."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copytree(EXAMPLE, folder / EXAMPLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    with definitions_of_their_own(), _importing_from(folder):
        modules = SimpleNamespace(**{name: importlib.import_module(f"example_project.{name}") for name in NAMES})
        yield modules
        modules.app.app.close()


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
