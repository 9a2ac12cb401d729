"""A Django project that keeps its sagas in its own database; its tests are run as a project's are, by ``manage.py``."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

import celery_sagas
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.testing.samples import operate, start
from tests import servers
from tests.contrib.django.databases import PROJECT, database_of, url_of
from tests.integration.launching import Forked
from tests.stores.sql import layout_5
from tests.waiting import PROGRAM_S, wait_until

#: What finds this library wherever it is: installed, or in a clone.
LIBRARY = Path(celery_sagas.__file__).parents[1]
EAGER = {"CELERY_TASK_ALWAYS_EAGER": True, "CELERY_TASK_EAGER_PROPAGATES": True}
#: What the web view needs of a project.
WITH_USERS = {
    "INSTALLED_APPS": [
        *("celery_sagas.contrib.django", "bakery"),
        *("django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"),
    ],
    "MIDDLEWARE": [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    "ROOT_URLCONF": "bakery.urls",
    "LOGIN_URL": "/enter/",
}
Manage = Callable[..., str]
#: What a worker does when it starts.
PREPARE = """
from celery_sagas.stores.urls import open_backend

open_backend("django://default", prefix="", options={options}).prepare(create_schema=True, processes=1)
"""


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Make a database of the kind that the test asks for."""
    kind = request.param.partition("+")[0]
    if kind == "sqlite":
        yield database_of(make_url(f"sqlite:///{tmp_path}/bakery.sqlite3"))
        return
    with servers.database(kind) as url:
        yield database_of(make_url(url))


@pytest.fixture
def manage(request: pytest.FixtureRequest, database: dict[str, Any], tmp_path: Path) -> Manage:
    """Return a function that runs ``manage.py``, and returns what it has written."""
    driver = request.node.callspec.params["database"].partition("+")[2]
    if driver == "mysqlclient" and not find_spec("MySQLdb"):
        servers.absent("mysqlclient is not installed, for which Debian's libmariadb-dev is needed: pip install mysqlclient")

    def run(*arguments: str, fails: bool = False, **settings: Any) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(PROJECT), str(LIBRARY)]),
            "BAKERY_DATABASES": json.dumps({"default": database}),
            "BAKERY_SETTINGS": json.dumps(settings),
            "BAKERY_DRIVER": driver,
        }
        output, errors = tmp_path / "output", tmp_path / "errors"
        for file in (output, errors):
            file.write_bytes(b"")
        process = Forked([str(PROJECT / "strict_manage.py"), *arguments], environment, PROJECT, output, errors)
        try:
            wait_until(lambda: process.poll() is not None, f"the end of manage.py {' '.join(arguments)}", PROGRAM_S)
            code = process.poll()
        finally:
            process.kill()
        written = output.read_text() + errors.read_text()
        assert bool(code) == fails, written
        return written

    return run


def on(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on these kinds of databases."""
    marks = {"sqlite": ()}
    return pytest.mark.parametrize(
        "database", [pytest.param(kind, marks=marks.get(kind, pytest.mark.server)) for kind in kinds], indirect=True
    )


@on("sqlite", "postgresql", "mariadb+pymysql", "mariadb+mysqlclient")
def test_tests_of_a_project_pass(manage: Manage) -> None:
    assert "\nOK" in manage("test", "--noinput", **EAGER)


@on("sqlite", "postgresql", "mariadb+pymysql")
def test_users_visit_the_web_view(manage: Manage) -> None:
    assert "\nOK" in manage("test", "--noinput", "bakery.visiting", **EAGER, **WITH_USERS)
    assert "No changes detected" in manage("makemigrations", "--check", **WITH_USERS)


@on("postgresql")
def test_database_of_tests_can_be_dropped(manage: Manage) -> None:
    output = manage("test", "--noinput", "bakery.publishing", CELERY_BROKER_URL="memory://")
    assert "\nOK\n" in output
    assert "ResourceWarning" not in output


@on("sqlite", "postgresql", "mariadb+pymysql")
def test_migrations_create_the_tables(manage: Manage) -> None:
    assert "celery_sagas.W002" in manage("check", "--database=default")
    assert "manage.py migrate" in manage("sagas", "dead", "list", fails=True)
    manage("migrate")
    assert manage("check", "--database=default").startswith("System check identified no issues")
    assert "no dead letters" in manage("sagas", "dead", "list")
    assert "No changes detected" in manage("makemigrations", "--check")
    manage("migrate", "celery_sagas", "zero")
    assert "celery_sagas.W002" in manage("check", "--database=default")
    manage("migrate")
    assert "no dead letters" in manage("sagas", "dead", "list")


@on("sqlite", "postgresql", "mariadb+pymysql")
@pytest.mark.parametrize("options", [{}, {"table_prefix": "Flour_"}], ids=["our names", "names of the options"])
def test_tables_of_the_release_before_are_migrated(manage: Manage, database: dict[str, Any], options: dict[str, Any]) -> None:
    settings = {"CELERY_SAGA_BACKEND_OPTIONS": options}
    with closing(SqlBackend(url_of(database), prefix="", options=options)) as before:
        layout_5.create(before)
        order = start(before)
        manage("migrate", "--fake", "celery_sagas", "0001", **settings)
        prepare = PREPARE.format(options=options)
        assert "run `python manage.py migrate --database=default`" in manage("shell", "-c", prepare, fails=True, **settings)
        manage("migrate", **settings)
        manage("shell", "-c", prepare, **settings)
        assert before.migrate() == []
        assert [glance.id for glance in before.instances.page(order.saga, 9).instances] == [order.id]
        made = operate(before)
        assert [each.id for each in before.audit.recent(9).entries] == [made.id]


@on("sqlite", "postgresql", "mariadb+pymysql")
def test_tables_of_the_layout_between_are_migrated(manage: Manage, database: dict[str, Any]) -> None:
    with closing(SqlBackend(url_of(database), prefix="")) as before:
        layout_5.create(before)
        add_column, _, _, _, create_index, *_ = before.migration().split(";\n")
        with before.database.connect() as connection:
            for statement in (add_column, create_index, "UPDATE saga_layout SET version = 6"):
                connection.exec_driver_sql(statement)
        manage("migrate", "--fake", "celery_sagas", "0002")
        manage("migrate")
        assert before.prepare(create_schema=False, processes=1) == []
        assert before.migrate() == []


@on("postgresql")
def test_table_that_others_have_locked(manage: Manage, database: dict[str, Any]) -> None:
    """Commits wait behind the migration, which gives up soon; that of the command tries again."""
    with closing(SqlBackend(url_of(database), prefix="")) as before:
        layout_5.create(before)
        manage("migrate", "--fake", "celery_sagas", "0001")
        with before.database.engine.connect() as other:
            other.exec_driver_sql("BEGIN; LOCK TABLE saga_instance IN ACCESS SHARE MODE")
            refused = manage("migrate", fails=True)
            other.exec_driver_sql("ROLLBACK")
        assert "canceling statement due to lock timeout" in refused
        assert "run `python manage.py sagas migrate`, which tries again until the table is free" in refused
        manage("sagas", "migrate")
        assert before.migrate() == []
        manage("migrate")


@on("sqlite", "postgresql", "mariadb+pymysql")
def test_release_before_runs_on_what_was_migrated(manage: Manage, database: dict[str, Any]) -> None:
    """So nothing is undone for it: workers of this release may still run."""
    manage("migrate")
    manage("migrate", "celery_sagas", "0001")
    with closing(SqlBackend(url_of(database), prefix="")) as backend:
        assert backend.migrate() == []
    manage("migrate")
    assert "no dead letters" in manage("sagas", "dead", "list")


@on("postgresql", "mariadb+pymysql")
def test_interrupted_migration_is_taken_up_again(manage: Manage, database: dict[str, Any]) -> None:
    with closing(SqlBackend(url_of(database), prefix="")) as before:
        layout_5.create(before)
        manage("migrate", "--fake", "celery_sagas", "0001")
        with before.database.connect() as connection:
            connection.exec_driver_sql(before.migration().split(";")[0])
        manage("migrate")
        assert before.prepare(create_schema=False, processes=1) == []
        assert before.migrate() == []


@on("sqlite", "postgresql", "mariadb+pymysql")
def test_tests_need_no_migrations(manage: Manage) -> None:
    assert "\nOK" in manage("test", "--noinput", **EAGER, MIGRATION_MODULES={"celery_sagas": None})


@on("postgresql", "mariadb+pymysql")
def test_tables_have_the_names_that_the_options_say(manage: Manage) -> None:
    options = {"table_prefix": "flour_"}
    assert "\nOK" in manage("test", "--noinput", **EAGER, CELERY_SAGA_BACKEND_OPTIONS=options)


@on("postgresql")
def test_tables_are_in_the_schema_that_the_options_say(manage: Manage) -> None:
    settings = {"CELERY_SAGA_BACKEND_OPTIONS": {"schema": "flour"}}
    assert "\nOK" in manage("test", "--noinput", **EAGER, **settings)
    assert "celery_sagas.W002" in manage("check", "--database=default", **settings)
    manage("migrate", **settings)
    manage("migrate", "--fake", "celery_sagas", "zero", **settings)
    manage("migrate", **settings)
    assert "celery_sagas.W002" not in manage("check", "--database=default", **settings)


@on("mariadb+pymysql")
def test_tests_have_no_database_beside_their_own(manage: Manage) -> None:
    assert "celery_sagas.E001" in manage("check", fails=True, CELERY_SAGA_BACKEND_OPTIONS={"schema": "flour"})


@on("sqlite")
def test_databases_that_keep_no_sagas_are_migrated(manage: Manage) -> None:
    manage("migrate", "--database=manual")


@on("postgresql")
def test_databases_of_named_backends_are_migrated_and_checked(manage: Manage) -> None:
    named = {"cakes": {"backend": "django://default", "options": {"table_prefix": "cake_"}}}
    settings = {"CELERY_SAGA_BACKEND": "memory://", "CELERY_SAGA_BACKENDS": named}
    assert "celery_sagas.W002" in manage("check", "--database=default", **settings)
    manage("migrate", **settings)
    assert "celery_sagas.W002" not in manage("check", "--database=default", **settings)
    named["pies"] = {"backend": "django://default", "options": {"schema": "pies"}}
    assert "celery_sagas.W002" in manage("check", "--database=default", **settings)
    manage("migrate", "celery_sagas", "zero", **settings)
    manage("migrate", **settings)
    assert "celery_sagas.W002" not in manage("check", "--database=default", **settings)
    manage("flush", "--noinput", **settings)
    named["cakes"]["backend"] = "django://nowhere"
    assert "celery_sagas.E001" in manage("check", fails=True, **settings)


@on("sqlite")
def test_checks_report_wrong_settings(manage: Manage) -> None:
    wrong = manage("check", fails=True, CELERY_SAGA_BACKEND="django://nowhere")
    assert "celery_sagas.E001" in wrong
    assert "It has default, manual" in wrong
    assert "celery_sagas.E001" in manage("check", fails=True, CELERY_SAGA_BACKEND_OPTIONS={"pool": 3})
    manage("check", CELERY_SAGA_BACKEND="memory://")
