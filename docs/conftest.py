"""Run the Python examples of these pages and of the README as tests: each page is one program, read from top to bottom."""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
from celery import Celery, _state
from sybil import Sybil
from sybil.parsers.myst import PythonCodeBlockParser

from celery_sagas.core.registry import registry
from celery_sagas.stores.urls import open_backend
from celery_sagas.worker.tracing import trace_with

ROOT = Path(__file__).resolve().parents[1]


def begin(namespace: dict[str, Any]) -> None:
    """Give a page's program a module name, and a folder of its own."""
    scratch = TemporaryDirectory()
    leave = os.getcwd(), scratch, set(_state._on_app_finalizers)
    for table in (registry.sagas, registry.steps, registry.aggregators, registry.subscribers):
        table.clear()  # no page has the definitions of another
    sys.modules["shop"] = module_of(namespace)
    namespace.update(__name__="shop", start_worker=start_worker, leave=leave)
    os.chdir(scratch.name)


def module_of(namespace: dict[str, Any]) -> ModuleType:
    """Return the module of a page's program: a file that the page writes can import from it.

    Pydantic looks the module up in which a generic model is used.
    """
    module = ModuleType("shop")

    def find(name: str) -> Any:
        if name in namespace:
            return namespace[name]
        raise AttributeError(name)

    module.__getattr__ = find  # type: ignore[method-assign]
    return module


def end(namespace: dict[str, Any]) -> None:
    """Remove the databases that a page has made, and its tasks: the next page may have namesakes of them."""
    home, scratch, _state._on_app_finalizers = namespace["leave"]
    for app in [value for value in namespace.values() if isinstance(value, Celery)]:
        app.close()
    trace_with(None)
    del sys.modules["shop"]
    os.chdir(home)
    scratch.cleanup()


def start_worker(app: Celery) -> None:
    """Stand in for a worker: create the tables, and have every message handled where it is published."""
    app.conf.task_always_eager = True
    backend = open_backend(app.conf.saga_backend, prefix="", options={})
    backend.prepare(create_schema=True, processes=1)
    backend.close()


EXAMPLES = Sybil(
    path=str(ROOT),
    patterns=["README.md", "docs/*.md"],
    excludes=["docs/reference.md"],  # it has signatures, and no programs
    parsers=[PythonCodeBlockParser(doctest_optionflags=0)],
    setup=begin,
    teardown=end,
)


def pytest_configure(config: pytest.Config) -> None:
    """Collect for the whole run: the README lies above this folder."""
    plugin = ModuleType("examples")
    plugin.pytest_collect_file = EXAMPLES.pytest()  # type: ignore[attr-defined]
    config.pluginmanager.register(plugin)
