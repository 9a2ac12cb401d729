"""What users install."""

import ast
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from trove_classifiers import classifiers

import celery_sagas
from tests.benchmarks.mutations import MUTATIONS, Mutation

#: By what is declared: what is imported under another name, or comes with it as a part of its interface.
COMES_WITH = {
    "celery": {"billiard", "click"},
    "django": {"asgiref"},
    "kombu": {"amqp"},
    "pydantic": {"pydantic_core", "typing_extensions"},
    "jinja2": {"markupsafe"},
    "opentelemetry-api": {"opentelemetry"},
    "starlette": {"anyio"},
}
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DRIVERS = [
    *("redis", "psycopg", "pymysql", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql"),
    *("cryptography", "opentelemetry", "prometheus_client", "structlog", "starlette", "jinja2"),
]


@pytest.mark.skipif("TOX_ENV_NAME" not in os.environ, reason="the source tree may be tested outside tox")
def test_built_wheel_is_what_is_tested():
    assert Path(celery_sagas.__file__).is_relative_to(sysconfig.get_path("purelib"))


def _imported(*folders: Path) -> set[str]:
    trees = [ast.parse(file.read_text()) for folder in folders for file in folder.rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"celery_sagas", "annotationlib"}


def test_what_is_imported_is_declared():
    """Whatever a dependency of ours depends on today; what the testing kit needs has an extra of its own."""
    package = Path(celery_sagas.__file__).parent
    extras = PROJECT["optional-dependencies"]
    drivers = [one for name, requirements in extras.items() if name != "testing" for one in requirements]

    def declared(requirements: list[str]) -> set[str]:
        names = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
        return names.union(*(COMES_WITH.get(name, ()) for name in names))

    testing = _imported(package / "testing")
    rest = _imported(*(folder for folder in package.iterdir() if folder.is_dir() and folder.name != "testing"))
    assert rest <= declared(PROJECT["dependencies"]) | declared(drivers)
    assert testing - declared(PROJECT["dependencies"]) == declared(extras["testing"])


def test_all_extras_are_in_all():
    """But that for tests."""
    extras = PROJECT["optional-dependencies"]
    others = ",".join(name for name in extras if name not in ("all", "testing"))
    assert extras["all"] == [f"celery-sagas[{others}]"], "Name each extra in `all` of pyproject.toml, in their order"


def test_classifiers_are_known():
    assert set(PROJECT["classifiers"]) <= classifiers


def test_addresses_are_written_once():
    """All of them begin with that of the source or of the documentation; everything else reads them from the metadata."""
    urls = PROJECT["urls"]
    addresses = {urls["Source"], urls["Documentation"]}
    assert all(url.startswith(tuple(addresses)) for url in urls.values())
    pages = [*ROOT.glob("*.*"), *ROOT.glob("docs/*"), *ROOT.glob(".github/**/*"), *ROOT.glob("celery_sagas/**/*.py")]
    texts = {page: page.read_text(errors="replace") for page in pages if page.is_file() and page.name != "pyproject.toml"}
    assert [page for page, text in texts.items() if any(address in text for address in addresses)] == []


def test_changelog_has_the_version_unless_it_is_unreleased():
    """The newest release is the version, and has its date; what comes after it stands above, as unreleased."""
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    released = [section for section in sections if section != "[Unreleased]"]
    assert sections in (released, ["[Unreleased]", *released])
    dates = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", section) for section in released]
    assert all(dates), "Head each release with its version and its date: ## [1.2.3] - 2026-01-31"
    assert [date[1] for date in dates if date][:1] in ([], [PROJECT["version"]]), "Give the release the version of pyproject.toml"
    assert [date[2] for date in dates if date] == sorted((date[2] for date in dates if date), reverse=True)


def test_package_is_typed():
    assert Path(celery_sagas.__file__).with_name("py.typed").is_file()


def test_commands_are_registered_with_celery():
    commands = distribution("celery-sagas").entry_points.select(group="celery.commands")
    assert [(command.name, command.value) for command in commands] == [("sagas", "celery_sagas.cli:sagas")]


def test_celerys_command_loads_the_package_for_any_app():
    """So that each worker which it starts has what the library adds, whether its app has sagas or not."""
    script = "import celery, sys; before = 'celery_sagas' in sys.modules; import celery.bin.celery; "
    script += "print(before, 'celery_sagas' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False True\n"


def test_importing_the_package_loads_no_driver():
    script = f"import celery_sagas, sys; print([name for name in {DRIVERS} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "[]\n"


@pytest.mark.parametrize(
    ("module", "missing", "extra"),
    [
        ("celery_sagas.web", "starlette", "web"),
        ("celery_sagas.web", "jinja2", "web"),
        ("celery_sagas.web.serving", "uvicorn", "web"),
        ("celery_sagas.telemetry.tracing", "opentelemetry", "otel"),
        ("celery_sagas.telemetry.metrics", "opentelemetry", "otel"),
        ("celery_sagas.telemetry.prometheus_store", "prometheus_client", "prometheus"),
        ("celery_sagas.contrib.fernet", "cryptography", "encryption"),
    ],
)
def test_extra_that_is_not_installed(module: str, missing: str, extra: str):
    script = f"import sys; sys.modules[{missing!r}] = None; import {module}"
    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    error = failed.stderr.splitlines()[-1]
    assert error.startswith("celery_sagas.errors.MissingExtra: ")
    assert error.endswith(f'Run pip install "celery-sagas[{extra}]".')


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.breaks)
def test_each_fault_can_be_planted(mutation: Mutation):
    """Its text stands once in its file: else nobody knows whether the tests still notice it."""
    assert (Path(celery_sagas.__file__).parent / mutation.file).read_text().count(mutation.old) == 1
