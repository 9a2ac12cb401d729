"""The names exist that the apps of the integration tests and of the benchmarks, and the tests themselves, patch.

Assigning to a name that a module does not have raises nothing, and a trap that cannot be set is an error in the log of a worker:
without these tests a name that has changed would show as a long run that waits for what never happens.
"""

import ast
import contextlib
import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launching import Forked
from tests.waiting import wait_until

TESTS = Path(__file__).resolve().parent
FOLDERS = [TESTS / "integration", TESTS / "benchmarks"]
ARMING = TESTS / "integration" / "arming.py"
#: Not an app: what a forked process runs, a program that takes a backend, and what needs a package that is not installed.
NO_APPS = frozenset({"launched", "lives", "unsafely_batched"})
APPS = {path.stem: path for folder in FOLDERS for path in sorted((folder / "apps").glob("*.py")) if path.stem not in NO_APPS}
MODULES = {str(path.relative_to(TESTS)): path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))}
BROKERS = {"rabbitmq": "pyamqp://127.0.0.1:1", "redis": "redis://127.0.0.1:1"}
#: Those whose traps depend on the broker, since the publishers differ.
ON_BOTH = [app for app, path in APPS.items() if "from traps import" in path.read_text()]
#: The packages whose names are patched, and may change.
PATCHED = ("celery_sagas", "celery", "kombu", "billiard")
#: A name in a string, such as that of a module that is imported early.
DOTTED = re.compile(r"celery_sagas(\.\w+)+")
#: The name of a task, in the same form.
TASKS = frozenset({"celery_sagas.gather"})


@pytest.mark.parametrize(("app", "broker"), [*((app, "redis") for app in APPS), *((app, "rabbitmq") for app in ON_BOTH)])
def test_app_is_imported_and_sets_its_traps(app: str, broker: str, tmp_path: Path) -> None:
    """No broker is there, and none is asked."""
    settings = {"broker_url": BROKERS[broker], "saga_backend": f"sqlite:///{tmp_path / 'sagas.sqlite3'}", "saga_prefix": "traps"}
    environment = {
        "PYTHONPATH": ":".join(str(folder / "apps") for folder in FOLDERS),
        "CELERY_SAGAS_TEST_FOLDER": str(tmp_path),
        "CELERY_SAGAS_TEST_SETTINGS": json.dumps(settings),
        "CELERY_SAGAS_TEST_POINT": "before claim",
        "CELERY_SAGAS_TEST_FAILS": "nowhere",
    }
    process = Forked([str(ARMING), app], environment, tmp_path, tmp_path / "output", errors := tmp_path / "errors")
    try:
        wait_until(lambda: process.poll() is not None, f"the end of {app}")
        assert process.poll() == 0, errors.read_text()
    finally:
        process.kill()


@pytest.mark.parametrize("module", MODULES)
def test_names_that_are_patched_exist(module: str) -> None:
    """A module imports what there is, and assigns to what there is."""
    tree = ast.parse(MODULES[module].read_text())
    missing = {path for path in named(tree) if path.split(".")[0] in PATCHED and not exists(path)}
    assert not missing, f"Write the names of now into tests/{module}"


def test_a_name_that_is_misspelt_is_found() -> None:
    """In every form in which a name is patched."""
    tree = ast.parse("""
from celery_sagas.engine import conflicts, no_module
from celery_sagas.worker.tasks import handle_massage
for module in (conflicts,):
    monkeypatch.setattr(module, "LOCK_S", 1)
conflicts.LOOK_MS = conflicts.LOCK_MS = 1
early = "celery_sagas.cli.reley"
""")
    assert {path for path in named(tree) if not exists(path)} == {
        "celery_sagas.engine.no_module",
        "celery_sagas.worker.tasks.handle_massage",
        "celery_sagas.engine.conflicts.LOCK_S",
        "celery_sagas.engine.conflicts.LOOK_MS",
        "celery_sagas.cli.reley",
    }


def named(tree: ast.Module) -> Iterator[str]:
    """Yield the paths of what a module imports, assigns to, patches, or has in a string."""
    imported = dict(imports(tree))
    yield from imported.values()
    stands_for = {name: [path] for name, path in imported.items()} | dict(loops(tree, imported))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store()):
                yield from paths(node, stands_for)
            case ast.Call(ast.Attribute(attr="setattr"), [module, ast.Constant(str(name)), *_]):
                yield from (f"{path}.{name}" for path in paths(module, stands_for))
            case ast.Constant(str(text)) if DOTTED.fullmatch(text) and text not in TASKS:
                yield text


def imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each name that is imported, and the path of what it stands for."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(aliases):
                yield from ((alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2 for alias in aliases)
            case ast.ImportFrom(str(module), aliases):
                yield from ((alias.asname or alias.name, f"{module}.{alias.name}") for alias in aliases)


def loops(tree: ast.Module, imported: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each variable of a loop over things that are imported, and their paths."""
    for node in ast.walk(tree):
        match node:
            case ast.For(ast.Name(variable), ast.Tuple(things)):
                yield variable, [imported[thing.id] for thing in things if isinstance(thing, ast.Name) and thing.id in imported]


def paths(node: ast.expr, stands_for: dict[str, list[str]]) -> list[str]:
    """Return the paths of what an expression may stand for: none, unless it begins with something that was imported."""
    match node:
        case ast.Name(name):
            return stands_for.get(name, [])
        case ast.Attribute(whose, attribute):
            return [f"{path}.{attribute}" for path in paths(whose, stands_for)]
    return []


def exists(path: str) -> bool:
    """Tell whether there is a module, or something in one, of this path."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            module = importlib.import_module(".".join(parts[:end]))
            return _has(module, parts[end:])
    return False


def _has(thing: object, names: list[str]) -> bool:
    for name in names:
        if not hasattr(thing, name):
            return False
        thing = getattr(thing, name)
    return True
