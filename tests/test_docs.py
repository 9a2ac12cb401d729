"""What the documentation must say."""

import re
import runpy
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import celery_sagas
from celery_sagas.engine.outcomes import Kind
from celery_sagas.operate.explain import Verdict
from celery_sagas.settings import PREFIX, Settings
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.options import DEFAULTS
from celery_sagas.stores.sql.tables import metadata
from celery_sagas.testing.samples import start
from tests import servers
from tests.stores.redis.catalogue import DEAD_KEYS, SHARD_KEYS

DOCS = Path(__file__).resolve().parents[1] / "docs"


def defaults_on(page: str, heading: str = "") -> dict[str, str]:
    """Return what the tables of a page say, below a heading if one is given: each name with its default."""
    text = (DOCS / page).read_text().partition(heading)[2] if heading else (DOCS / page).read_text()
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, flags=re.MULTILINE))


def as_shown(default: object) -> str:
    """Return a default as a table shows it: URLs without quotes."""
    if default == "":
        return "empty"
    if isinstance(default, str):
        return f"`{default}`" if "://" in default else f'`"{default}"`'
    return f"`{default}`"


def test_settings_page_lists_every_setting_and_no_other():
    assert set(defaults_on("settings.md")) == {PREFIX + name for name in Settings.model_fields}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_settings_page_tells_the_default(name):
    assert defaults_on("settings.md")[PREFIX + name] == as_shown(getattr(Settings(), name))


@pytest.mark.parametrize("name", celery_sagas.__all__)
def test_reference_has_every_public_name(name):
    assert f"\n### `{name}`\n" in (DOCS / "reference.md").read_text()


def test_reference_shows_what_the_source_says():
    written = runpy.run_path(str(DOCS / "make_reference.py"))["reference"]()
    assert (DOCS / "reference.md").read_text() == written, "Write the page again: python docs/make_reference.py"


def test_graph_page_shows_what_the_command_draws(tmp_path):
    example = DOCS.parent / "example_project"
    shutil.copytree(example, tmp_path / example.name, ignore=shutil.ignore_patterns("__pycache__"))
    drawn = runpy.run_path(str(DOCS / "make_graph.py"))["page"](tmp_path)
    assert (DOCS / "graph.md").read_text() == drawn, "Draw the graphs again: python docs/make_graph.py"


def test_operating_page_shows_what_the_commands_print(tmp_path):
    played = [sys.executable, str(DOCS / "make_operating.py"), str(tmp_path / "page.md")]
    subprocess.run(played, cwd=tmp_path, capture_output=True, check=True)
    assert (DOCS / "operating.md").read_text() == (tmp_path / "page.md").read_text(), (
        "Play it again: python docs/make_operating.py"
    )


def test_graph_page_shows_the_warnings_of_its_saga(tmp_path):
    page = (DOCS / "graph.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "rentals.py").write_text(program)
    command = [sys.executable, "-m", "celery", "-A", "rentals", "sagas", "graph", "rental"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == page.partition("## Warnings")[2].partition("```text\n")[2].partition("```")[0]


def test_stores_page_lists_every_option_with_its_default():
    assert defaults_on("stores.md", "## Options") == {name: as_shown(default) for name, default in DEFAULTS.items()}


def test_redis_page_lists_every_key_and_no_other():
    rows = re.findall(
        r"^\| (`.*?) \|", (DOCS / "redis.md").read_text().partition("## What is stored where")[2], flags=re.MULTILINE
    )
    listed = [re.escape(key).replace("…", r"\w+") for row in rows for key in re.findall(r"`(?:\{\S+?\}|…):([^`]+)`", row)]
    kept = {*SHARD_KEYS, *DEAD_KEYS}
    assert {key for key in kept if not any(re.fullmatch(pattern, key) for pattern in listed)} == set()
    assert [pattern for pattern in listed if not any(re.fullmatch(pattern, key) for key in kept)] == []


@pytest.mark.parametrize("table", metadata.tables.values(), ids=str)
def test_stores_page_lists_every_column_and_no_other(table):
    rows = re.findall(rf"^\| `{table.name}` \| (`.*?`) \|", (DOCS / "stores.md").read_text(), flags=re.MULTILINE)
    shown = [column for row in rows for column in re.findall(r"`(\w+)`", row)]
    assert sorted(shown) == sorted(column.name for column in table.columns if column.name != "prefix")


def test_hooks_page_names_every_signal_of_celery_that_is_used():
    package = Path(celery_sagas.__file__).parent
    used = {name for file in package.rglob("*.py") for name in re.findall(r"\bsignals\.(\w+)\.connect\(", file.read_text())}
    told = (DOCS / "hooks.md").read_text().partition("## Which signals are used")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", told, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == used


def test_glossary_says_each_word_once_and_beside_it_those_of_five_others():
    tables = (DOCS / "glossary.md").read_text().partition("## The same word")[0]
    rows = [line.strip("| ").split(" | ") for line in tables.splitlines() if line.startswith("| ")]
    words = [word for word, *_ in rows if word != "Word"]
    assert len(words) == len(set(words))
    assert {len(row) for row in rows} == {7}


def test_operating_page_lists_every_verdict_and_no_other():
    """In their order: the first one that applies is given."""
    told = (DOCS / "operating.md").read_text().partition("### Verdicts")[2].partition("\n### ")[0]
    assert re.findall(r"^\| `(\w+)` \|", told, flags=re.MULTILINE) == list(Verdict)


def test_every_page_is_in_the_table_of_contents():
    listed = re.findall(r"^([\w-]+)$", (DOCS / "index.md").read_text(), flags=re.MULTILINE)
    assert set(listed) >= {page.stem for page in DOCS.glob("*.md")} - {"index"}


@pytest.mark.parametrize(
    ("page", "program", "packages"),
    [
        ("comparison.md", "batches.py", {"celery-sagas", "celery[redis]<5.7", "celery-batches"}),
        ("comparison.md", "celery_saga_killed.py", {"celery-saga", "celery[redis]"}),
        ("comparison.md", "eta.py", {"celery-sagas[postgresql]", "celery[redis]"}),
        ("quickstart.md", "", {"celery[redis]"}),
        ("../README.md", "", {"celery[redis]"}),
        ("fastapi.md", "", {"httpx2"}),
        ("telemetry.md", "CeleryInstrumentor", {"opentelemetry-instrumentation-celery"}),
    ],
)
def test_pages_install_what_their_programs_import(page, program, packages):
    commands = re.findall(r"^pip install .*$", (DOCS / page).read_text(), flags=re.MULTILINE)
    assert any(packages <= set(command.replace('"', "").split()) for command in commands if program in command)


def test_settings_on_the_page_about_django_import_what_they_use(tmp_path):
    shown = (DOCS / "django.md").read_text().partition("django_shop/shop/settings.py\n")[2].partition("```")[0]
    options = dict(re.findall(r"^:([\w-]+): (.*)$", shown, flags=re.MULTILINE))
    settings = (DOCS.parent / "example_project/django_shop/shop/settings.py").read_text()
    program = options["start-at"] + settings.partition(options["start-at"])[2]
    exec(f"{options.get('prepend', '')}\n{program}", {"BASE_DIR": tmp_path})  # as Django's own settings have it


@pytest.mark.server
@pytest.mark.parametrize(
    ("page", "begin", "end"),
    [
        ("listing.md", "`--outcome` chooses", "```console"),
        ("stores.md", "| `saga_journal` | `outcome` |", "| `saga_journal` | `saga`"),
    ],
)
def test_pages_list_every_outcome_that_the_journal_has_and_no_other(page, begin, end):
    said = (DOCS / page).read_text().partition(begin)[2].partition(end)[0]
    assert sorted(re.findall("`([a-z]+)`", said)) == sorted(set(Kind) - {Kind.DROPPED, Kind.DUPLICATE})


def test_query_of_the_journal_finds_what_an_order_has_met():
    """And nothing of others."""
    query = (DOCS / "stores.md").read_text().partition("```sql\n")[2].partition(";")[0]
    with (
        servers.database("postgresql") as url,
        closing(SqlBackend(url, prefix="")) as backend,
        closing(SqlBackend(url, prefix="other")) as other,
    ):
        backend.prepare(create_schema=True, processes=1)
        for name, key in (("order", "42"), ("order", "43"), ("invoice", "42")):
            start(backend, key, names=(name,))
        start(other, "42")
        with backend.database.connect() as connection:
            (row,) = connection.exec_driver_sql(query)
    assert "started" in row
