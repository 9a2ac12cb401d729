"""Making an SQL database ready, and refusing one that cannot keep the promise."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Connection, Inspector, Table, create_engine, inspect
from sqlalchemy.exc import ProgrammingError

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.layouts import Layout
from celery_sagas.stores.sql import schema
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.checks import CHECKS
from celery_sagas.stores.sql.connection.location import locate
from celery_sagas.stores.sql.connection.names import OURS, Names
from celery_sagas.stores.sql.schema import ddl
from celery_sagas.stores.sql.tables import LAYOUT, metadata
from celery_sagas.testing.batches import CLOSED, add
from celery_sagas.testing.samples import by_key, found, start, update
from tests import servers
from tests.servers import unique
from tests.stores.sql.conftest import DATABASES
from tests.waiting import PROGRAM_S

#: Forks processes that have imported everything, so that they come to the database at once.
_PREPARE_IN_FIVE_PROCESSES = """
import json
import os
import sys
from celery_sagas.stores.sql.backend import SqlBackend

trigger, opened = os.pipe()
for number in range(5):
    if os.fork() == 0:
        os.close(opened)
        os.read(trigger, 1)  # until the parent has forked all of them, and closes it
        url, *places = sys.argv[1:]
        options = {"busy_timeout": 240, **json.loads(places[number % len(places)])}  # for SQLite: until all others are done
        backend = SqlBackend(url, prefix="", options=options)
        backend.prepare(create_schema=True, processes=2)
        backend.close()
        sys.exit()
os.close(opened)
print([os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(5)])
"""


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.sqlite3"
    else:
        with servers.database(request.param) as url:
            yield url


@pytest.fixture
def empty(empty_url: str) -> Iterator[SqlBackend]:
    """A backend on a database without tables."""
    backend = SqlBackend(empty_url, prefix="")
    yield backend
    backend.close()


def run(backend: SqlBackend, *statements: str) -> None:
    """Run statements as an administrator would."""
    with backend.database.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


def prepare_in_five_processes(url: str, *places: dict[str, str]) -> None:
    """Have five processes prepare a database at once, with these options in turn."""
    command = [sys.executable, "-c", _PREPARE_IN_FIVE_PROCESSES, url, *map(json.dumps, places)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert ended.stdout == f"{[0] * 5}\n", ended.stderr


class TestSchema:
    """Tables and their layout."""

    def test_five_processes_create_it_at_once(self, empty_url: str, empty: SqlBackend) -> None:
        prepare_in_five_processes(empty_url, {})
        empty.prepare(create_schema=False, processes=1)
        start(empty)

    def test_rival_creates_it_after_each_look(self, empty_url: str, empty: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        look, looks = schema.stored_layout, list[Layout | None]()

        def look_before_a_rival(connection: Connection, names: Names) -> Layout | None:
            looks.append(look(connection, names))
            if len(looks) == 1:
                monkeypatch.setattr(schema, "stored_layout", look)
                with closing(SqlBackend(empty_url, prefix="rival", options={})) as rival:
                    rival.prepare(create_schema=True, processes=1)
            return looks[-1]

        monkeypatch.setattr(schema, "stored_layout", look_before_a_rival)
        empty.prepare(create_schema=True, processes=1)
        assert looks == [None]
        start(empty)

    def test_missing_tables_are_refused_if_they_are_not_to_be_created(self, empty: SqlBackend) -> None:
        with pytest.raises(ConfigurationError, match="celery -A proj sagas schema"):
            empty.prepare(create_schema=False, processes=1)

    def test_printed_statements_make_the_same_schema(self, empty_url: str, empty: SqlBackend) -> None:
        statements = [statement for statement in ddl(locate(empty_url)).split(";\n") if statement.strip()]
        run(empty, *statements)
        empty.prepare(create_schema=False, processes=1)
        update(empty, start(empty, keys=(("tracking", "T1"),)))
        assert add(empty, CLOSED, "item").added == 1

    def test_printing_needs_no_server(self) -> None:
        for name in ("postgresql", "mysql", "mariadb", "sqlite", "db+postgresql://me:s3cret@nowhere/shop"):
            text = ddl(locate(f"{name}://"))
            assert text.count("CREATE TABLE") == len(metadata.tables)
            assert "s3cret" not in text
        assert "ENGINE=InnoDB" in ddl(locate("mariadb://"))

    @pytest.mark.parametrize(
        ("version", "remedy"),
        [
            (LAYOUT.oldest - 1, "Use the release that made it"),
            (LAYOUT.oldest, "Run `celery -A proj sagas migrate`"),
            (99, "Upgrade the workers"),
        ],
        ids=["older", "of the release before", "newer"],
    )
    def test_another_layout_is_refused(self, empty: SqlBackend, version: int, remedy: str) -> None:
        empty.prepare(create_schema=True, processes=1)
        run(empty, f"UPDATE saga_layout SET version = {version}, oldest = {version}")
        with pytest.raises(ConfigurationError, match=rf"layout {version}, .* knows {LAYOUT.version}\. {remedy}"):
            empty.prepare(create_schema=True, processes=1)

    def test_newer_layout_with_which_this_code_can_live(self, empty: SqlBackend) -> None:
        """Nothing is created in it: it may need less."""
        empty.prepare(create_schema=True, processes=1)
        run(empty, f"UPDATE saga_layout SET version = {LAYOUT.version + 1}", "DROP TABLE saga_app")
        empty.prepare(create_schema=True, processes=1)
        start(empty)
        with empty.database.connect() as connection:
            assert not inspect(connection).has_table("saga_app")

    def test_interrupted_creation_is_taken_up_again(self, empty_url: str, empty: SqlBackend) -> None:
        """Without the layout's row, what is missing is created: a table, or one index of a table."""
        empty.prepare(create_schema=True, processes=1)
        on = " ON saga_journal" if empty.database.name == "mysql" else ""
        run(empty, "DELETE FROM saga_layout", "DROP TABLE saga_key", f"DROP INDEX saga_journal_at{on}")
        empty.prepare(create_schema=True, processes=1)
        engine = create_engine(locate(empty_url).url)
        indexes = [index["name"] for index in inspect(engine).get_indexes("saga_journal")]
        assert "saga_journal_at" in indexes
        assert "saga_key" in inspect(engine).get_table_names()
        engine.dispose()

    def test_table_that_is_missing_beside_the_layout_is_created(self, empty: SqlBackend) -> None:
        empty.prepare(create_schema=True, processes=1)
        run(empty, "DROP TABLE saga_buffer")
        with pytest.raises(ConfigurationError, match="tables are missing"):
            empty.prepare(create_schema=False, processes=1)
        empty.prepare(create_schema=True, processes=1)
        assert add(empty, CLOSED, "item").added == 1

    def test_table_that_is_not_needed_may_be_missing(self, empty: SqlBackend) -> None:
        """It came later than the others, and nobody is asked to create it."""
        empty.prepare(create_schema=True, processes=1)
        run(empty, "DROP TABLE saga_app")
        empty.prepare(create_schema=False, processes=1)
        assert [empty.note_app("shop"), empty.note_app("billing")] == ["", ""]
        start(empty)
        empty.prepare(create_schema=True, processes=1)
        assert [empty.note_app("shop"), empty.note_app("billing")] == ["", "shop"]

    def test_table_that_is_not_needed_need_not_be_allowed(self, empty: SqlBackend, monkeypatch: pytest.MonkeyPatch) -> None:
        """To a user who may write to the tables that are there, and create none."""

        def refuse(*_: object, **__: object) -> None:
            raise ProgrammingError("CREATE TABLE saga_app", {}, Exception("permission denied"))

        empty.prepare(create_schema=True, processes=1)
        run(empty, "DROP TABLE saga_app")
        monkeypatch.setattr(Table, "create", refuse)
        empty.prepare(create_schema=True, processes=1)
        update(empty, start(empty))
        assert empty.note_app("shop") == ""

    def test_every_table_is_partitioned_by_prefix(self) -> None:
        assert {name for name, table in metadata.tables.items() if "prefix" not in table.c} == {"saga_layout", "saga_database"}

    def test_failed_creation_releases_its_lock(self, empty: SqlBackend) -> None:
        """A view stands in the way; once it is gone the next worker succeeds, without waiting."""
        run(empty, "CREATE VIEW saga_dead AS SELECT 1 AS id")
        with pytest.raises(StoreUnavailable):
            empty.prepare(create_schema=True, processes=1)
        run(empty, "DROP VIEW saga_dead")
        another = SqlBackend(empty.database.location.url.render_as_string(hide_password=False), prefix="")
        another.prepare(create_schema=True, processes=1)
        another.close()


@pytest.fixture
def schemas(request: pytest.FixtureRequest, empty: SqlBackend) -> Iterator[tuple[str, str]]:
    """The names of two schemas that are not there."""
    names = unique("Orders"), unique("Stock")
    yield names
    if empty.database.name == "mysql":  # elsewhere they are a part of the database
        run(empty, *(f"DROP SCHEMA IF EXISTS `{name}`" for name in names))


@contextmanager
def opened(empty: SqlBackend, **options: Any) -> Iterator[SqlBackend]:
    """Open a backend on the same database with options; SQLite has no schemas."""
    if empty.database.name == "sqlite":
        options.pop("schema", None)
    url = empty.database.location.url.render_as_string(hide_password=False)
    with closing(SqlBackend(url, prefix="", options=options)) as backend:
        yield backend


def made(backend: SqlBackend) -> dict[str, str]:
    """Return what the database says that the tables with the backend's prefix are made of, without that prefix."""
    prefix, schema = backend.database.names.prefix, backend.database.names.schema or None
    with backend.database.connect() as connection:
        there = inspect(connection)
        tables = [name for name in there.get_table_names(schema) if name.startswith(prefix)]
        return {table.removeprefix(prefix): _parts(there, table, schema).replace(prefix, "") for table in tables}


def _parts(there: Inspector, table: str, schema: str | None) -> str:
    columns = [(column["name"], str(column["type"]), column["nullable"]) for column in there.get_columns(table, schema)]
    indexes = [
        (index["name"], index["column_names"], {name: str(value) for name, value in index.get("dialect_options", {}).items()})
        for index in sorted(there.get_indexes(table, schema), key=itemgetter("name"))
    ]
    return f"{columns} {there.get_pk_constraint(table, schema)} {indexes} {there.get_unique_constraints(table, schema)}"


only_servers = pytest.mark.parametrize("empty_url", ["postgresql", "mariadb"], indirect=True)


class TestNames:
    """Tables in a schema of their own, and under names of their own."""

    def test_printed_statements_make_the_same_tables(self, empty: SqlBackend, schemas: tuple[str, str]) -> None:
        first, second = schemas
        with (
            opened(empty, schema=first, table_prefix="Shop_") as created,
            opened(empty, schema=second, table_prefix="b_") as printed,
        ):
            created.prepare(create_schema=True, processes=1)
            run(printed, *(each for each in printed.schema().split(";\n") if each.strip()))
            printed.prepare(create_schema=False, processes=1)
            assert made(created) == made(printed)
            assert made(created).keys() == metadata.tables.keys()
            start(printed)

    def test_two_apps_create_their_tables_in_one_schema_at_once(
        self, empty_url: str, empty: SqlBackend, schemas: tuple[str, str]
    ) -> None:
        schema = {} if empty.database.name == "sqlite" else {"schema": schemas[0]}
        shop, bank = ({**schema, "table_prefix": prefix} for prefix in ("Shop_", "bank_"))
        prepare_in_five_processes(empty_url, shop, bank)
        for options in (shop, bank):
            with opened(empty, **options) as backend:
                backend.prepare(create_schema=False, processes=1)
                start(backend)

    def test_printing_needs_no_server(self) -> None:
        for name, quoted in (("postgresql", '"Orders".shop_saga_key'), ("mysql", "`Orders`.shop_saga_key")):
            text = ddl(locate(f"{name}://"), Names(schema="Orders", prefix="shop_"))
            assert text.startswith("CREATE SCHEMA IF NOT EXISTS")
            assert f"CREATE TABLE {quoted} (" in text
            assert text.count("saga_") == text.count("shop_saga_") + text.count("(saga_")
        assert "SCHEMA" not in ddl(locate("postgresql://"), Names(prefix="shop_"))

    @only_servers
    def test_missing_schema_is_refused_if_it_is_not_to_be_created(self, empty: SqlBackend, schemas: tuple[str, str]) -> None:
        problem = rf"{schemas[0]}\.saga_\* are missing.*celery -A proj sagas schema"
        with opened(empty, schema=schemas[0]) as backend, pytest.raises(ConfigurationError, match=problem):
            backend.prepare(create_schema=False, processes=1)

    @only_servers
    def test_schema_that_may_not_be_created(self, empty: SqlBackend, limited: str, schemas: tuple[str, str]) -> None:
        """It may be used as soon as an administrator has created it."""
        name, quote = schemas[0], "`" if empty.database.name == "mysql" else '"'
        with closing(SqlBackend(limited, prefix="", options={"schema": name})) as backend:
            with pytest.raises(ConfigurationError, match=f"{name} is missing in .* may not create it.*CREATE SCHEMA"):
                backend.prepare(create_schema=True, processes=1)
            run(empty, f"CREATE SCHEMA {quote}{name}{quote}")
            rights = "ALL ON {}.*" if quote == "`" else "ALL ON SCHEMA {}"
            run(empty, f"GRANT {rights.format(f'{quote}{name}{quote}')} TO {backend.database.location.url.username}")
            backend.prepare(create_schema=True, processes=1)
            start(backend)

    @pytest.fixture
    def limited(self, empty: SqlBackend) -> Iterator[str]:
        """The URL of a user who may connect to the database, and no more."""
        name, is_mysql = unique("limited"), empty.database.name == "mysql"
        url = empty.database.location.url.set(username=name, password="limited")
        if is_mysql:
            database = f"`{url.database}`.*"
            run(empty, f"CREATE USER {name} IDENTIFIED BY 'limited'", f"GRANT SELECT ON {database} TO {name}")
        else:
            run(empty, f"CREATE ROLE {name} LOGIN PASSWORD 'limited'")
        yield url.render_as_string(hide_password=False)
        run(empty, *([] if is_mysql else [f"DROP OWNED BY {name}"]), f"DROP USER {name}")

    @pytest.mark.parametrize("empty_url", ["mariadb"], indirect=True)
    def test_table_without_transactions(self, empty: SqlBackend, schemas: tuple[str, str]) -> None:
        """Only among those of this app."""
        run(empty, f"CREATE SCHEMA `{schemas[0]}`", f"CREATE TABLE `{schemas[0]}`.Shop_saga_outbox (id INT) ENGINE=MyISAM")
        run(empty, "CREATE TABLE Shop_saga_key (id INT) ENGINE=MyISAM")
        problem = "Shop_saga_outbox has the engine MyISAM"
        with opened(empty, schema=schemas[0], table_prefix="Shop_") as backend, pytest.raises(ConfigurationError, match=problem):
            backend.prepare(create_schema=True, processes=1)
        with opened(empty, schema=schemas[0], table_prefix="bank_") as backend:
            backend.prepare(create_schema=True, processes=1)


class TestRefusals:
    """Backends that cannot keep the promise."""

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:shop?mode=memory&uri=true"])
    def test_sqlite_in_memory_serves_one_process(self, url: str) -> None:
        backend = SqlBackend(url, prefix="")
        with pytest.raises(ConfigurationError, match="processes"):
            backend.prepare(create_schema=True, processes=2)
        backend.prepare(create_schema=True, processes=1)
        assert update(backend, start(backend)) == found(backend, by_key())
        backend.close()

    def test_read_only_sqlite(self, tmp_path: Path) -> None:
        path = tmp_path / "sagas.sqlite3"
        writer = SqlBackend(f"sqlite:///{path}", prefix="")
        writer.prepare(create_schema=True, processes=1)
        writer.close()
        reader = SqlBackend(f"sqlite:///file:{path}?mode=ro&uri=true", prefix="")
        with pytest.raises(ConfigurationError, match="read-only"):
            reader.prepare(create_schema=True, processes=1)
        reader.close()

    def test_sqlite_that_somebody_is_writing_to(self, tmp_path: Path) -> None:
        """As the caller is whose first message, in eager mode, comes after a row of its own."""
        url = f"sqlite:///{tmp_path / 'sagas.sqlite3'}"
        backend = SqlBackend(url, prefix="")
        backend.prepare(create_schema=True, processes=1)
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE rows (number)")
            assert backend.prepare(create_schema=True, processes=1) == []
        engine.dispose()
        backend.close()

    def test_read_only_postgresql(self, postgresql_url: str) -> None:
        options = {"connect_args": {"options": "-c default_transaction_read_only=on"}}
        backend = SqlBackend(postgresql_url, prefix="", options=options)
        with pytest.raises(ConfigurationError, match="read-only"):
            backend.prepare(create_schema=True, processes=1)
        backend.close()

    @pytest.mark.parametrize("empty_url", ["mariadb"], indirect=True)
    def test_table_without_transactions(self, empty: SqlBackend) -> None:
        run(empty, "CREATE TABLE saga_outbox (id INT) ENGINE=MyISAM")
        with pytest.raises(ConfigurationError, match="saga_outbox has the engine MyISAM"):
            empty.prepare(create_schema=True, processes=1)

    @pytest.mark.parametrize(
        ("settings", "problem"),
        [
            ({"read_only": 1}, "read-only"),
            ({"log_bin": 1, "binlog_format": "STATEMENT"}, "binlog_format"),
            ({"version": (10, 5, 29)}, "MariaDB 10.5.29"),
            ({"version": (5, 7, 44), "is_mariadb": False}, "MySQL 5.7.44"),
        ],
        ids=["read only", "binlog format", "MariaDB", "MySQL"],
    )
    def test_mysql_server(self, settings: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigurationError, match=problem):
            CHECKS["mysql"](_mysql(**settings), OURS)

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"isolation_level": "AUTOCOMMIT"}, "isolation_level"),
            ({"execution_options": {"isolation_level": "AUTOCOMMIT"}}, "execution_options"),
            ({"connect_args": {"autocommit": False}}, "autocommit"),
            ({"pool_pre_ping": True}, "pool_pre_ping"),
            ({"pool_size": 5}, "pool_size"),
            ({"pool_recycle": "5"}, "pool_recycle"),
            ({"connect_args": "connect_timeout=1"}, "connect_args"),
        ],
    )
    def test_option(self, options: dict[str, object], name: str) -> None:
        with pytest.raises(ConfigurationError, match=name):
            SqlBackend("sqlite://", prefix="", options=options)

    def test_option_in_the_url(self) -> None:
        with pytest.raises(ConfigurationError, match="autocommit"):
            SqlBackend("mysql://root@localhost/shop?autocommit=false", prefix="")


class TestWarnings:
    """Servers that may lose what was committed."""

    def test_postgresql_without_synchronous_commit(self, postgresql_url: str) -> None:
        options = {"connect_args": {"options": "-c synchronous_commit=off"}}
        backend = SqlBackend(postgresql_url, prefix="", options=options)
        (warning,) = backend.prepare(create_schema=True, processes=1)
        assert "synchronous_commit=off" in warning
        assert warning.endswith(".")
        backend.close()

    def test_mysql_that_flushes_once_a_second(self) -> None:
        (warning,) = CHECKS["mysql"](_mysql(flush=2), OURS)
        assert "innodb_flush_log_at_trx_commit=2" in warning
        assert CHECKS["mysql"](_mysql(), OURS) == []


def _mysql(
    *,
    version: tuple[int, ...] = (10, 11, 6),
    is_mariadb: bool = True,
    read_only: int = 0,
    log_bin: int = 0,
    binlog_format: str = "MIXED",
    flush: int = 1,
) -> Any:
    """Return a connection to a server with these settings; those of the real one are everybody's."""
    settings = (read_only, log_bin, binlog_format, flush)

    class Rows(list[object]):
        def one(self) -> object:
            return settings

    dialect = SimpleNamespace(server_version_info=version, is_mariadb=is_mariadb)
    return SimpleNamespace(dialect=dialect, exec_driver_sql=lambda *_: Rows())
