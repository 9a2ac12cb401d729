"""Tables in a schema of their own, and under names of their own."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, NullPool, String, create_engine, func, literal, select, text
from sqlalchemy.orm import Session

from celery_sagas.errors import ConfigurationError, StoreUnavailable
from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.names import OURS, Names, read_names
from celery_sagas.stores.sql.connection.options import DEFAULTS
from celery_sagas.stores.sql.outbox import _claim, _due
from celery_sagas.stores.sql.purges import _purge
from celery_sagas.stores.sql.tables import journal, metadata, outbox
from celery_sagas.testing import NewBackend, OutboxContract
from celery_sagas.testing.contract.aggregates.flush import FlushingContract
from celery_sagas.testing.contract.sagas.commits import CancelContract
from celery_sagas.testing.contract.sagas.find import FindContract, LockContract
from celery_sagas.testing.contract.sagas.writes import DeleteContract, InsertContract, UpdateContract
from celery_sagas.testing.samples import by_id, by_key, claim, effects, entry, found, new_record, outgoing, start, update
from tests import servers
from tests.servers import unique
from tests.stores.sql.conftest import DATABASES
from tests.stores.sql.test_contract import Sql
from tests.stores.sql.watching import explained


@dataclass(frozen=True)
class Place:
    """A database without any tables but those that the options ask for."""

    url: str
    options: dict[str, Any]

    def open(self, prefix: str = "", clock: Any = None, **options: Any) -> SqlBackend:
        """Open a backend, with these options instead of those of the place."""
        return SqlBackend(self.url, prefix=prefix, clock=clock, options={**self.options, **options})


@pytest.fixture(scope="module", params=DATABASES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Tables under a prefix and, but on SQLite, in a schema; both must be quoted."""
    with ExitStack() as ending:
        if request.param == "sqlite":
            place = Place(f"sqlite:///{tmp_path_factory.mktemp('names')}/sagas.sqlite3", {"table_prefix": "Shop_"})
        else:
            url = ending.enter_context(servers.database(request.param))
            waits = {"connect_args": {"options": "-c synchronous_commit=off"}} if request.param == "postgresql" else {}
            place = Place(url, {"schema": unique("Orders"), "table_prefix": "Shop_", **waits})
        backend = ending.enter_context(closing(place.open()))
        backend.prepare(create_schema=True, processes=1)
        if request.param == "mariadb":
            ending.callback(run, backend, f"DROP SCHEMA `{place.options['schema']}`")
        yield place


@pytest.fixture
def sql(place: Place) -> Iterator[SqlBackend]:
    """A backend whose tables have these names, and no other test's rows."""
    with closing(place.open(unique())) as backend:
        yield backend


only_servers = pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)


def run(backend: SqlBackend, *statements: str) -> None:
    """Run statements as an administrator would."""
    with backend.database.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)


class Named(Sql):
    """Backends in one such place. They run the essentials of the contract: other statements get their names in the same way."""

    @pytest.fixture
    def new_backend(self, place: Place) -> NewBackend:
        return place.open


@only_servers
class TestSagas(Named, FindContract, LockContract, InsertContract, UpdateContract, CancelContract, DeleteContract):
    """The sagas."""


@only_servers
class TestOutbox(Named, OutboxContract):
    """The outgoing rows."""


@only_servers
class TestFlushing(Named, FlushingContract):
    """The aggregators."""


class TestApart:
    """Apps that share a schema, and no table."""

    def test_one_does_not_see_the_other(self, place: Place, sql: SqlBackend) -> None:
        with closing(place.open(sql.database.prefix, table_prefix="Bank_")) as bank:
            bank.prepare(create_schema=True, processes=1)
            mine, others = start(sql, "42", outgoing()), start(bank, "42", outgoing())
            assert (found(sql, by_key("42")), found(bank, by_key("42"))) == (mine, others)
            assert bank.sagas.find(by_id(mine.id)).record is None
            assert (len(claim(sql)), len(claim(bank)), claim(sql)) == (1, 1, [])

    def test_missing_tables_are_named(self, place: Place) -> None:
        """Those of another app are there."""
        with closing(place.open(table_prefix="Late_")) as late, pytest.raises(StoreUnavailable, match=r"Late_saga_\*"):
            start(late)


class TestPlans:
    """Statements use the indexes under their names."""

    def test_claim(self, sql: SqlBackend) -> None:
        by_time = sql.database.names.of("saga_outbox_available")
        claiming = (_claim, (False,)) if sql.database.name == "postgresql" else (_due, (False, by_time))
        statement = sql.database.statement(*claiming)
        values = statement.bind({"limit": 10, "lease_ms": 1, "token": "t"})
        assert by_time in explained(sql, statement.text, values)

    def test_purge(self, sql: SqlBackend) -> None:
        for _ in range(50):
            sql.sagas.record(effects())
        statement = sql.database.statement(_purge, (journal.name, "at", sql.database.name))
        plan = explained(sql, statement.text, statement.bind({"before": 10**14, "limit": 1}))
        assert sql.database.names.of("saga_journal_at") in plan


class TestTransactions:
    """Rows of the user's beside ours: each in its own schema."""

    @pytest.fixture
    def engine(self, sql: SqlBackend) -> Iterator[Engine]:
        """The user's own engine, with a table of theirs that has a name of ours, and is in the schema of the connection."""
        engine = create_engine(sql.database.location.url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE saga_key (id VARCHAR(80) PRIMARY KEY)"))
        yield engine
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE saga_key"))
        engine.dispose()

    def test_rows_of_a_caller(self, sql: SqlBackend, engine: Engine) -> None:
        row = outgoing(payload='{"é": "𝄞"}')
        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO saga_key VALUES ('mine')"))
            sql.shared.add(session, [row], lambda cause: None)
        (stored,) = claim(sql)
        assert stored[:6] == row

    def test_tables_for_any_engine(self, sql: SqlBackend, engine: Engine) -> None:
        start(sql, "42", outgoing(), outgoing())
        table = sql.database.names.table(outbox)
        is_mine = table.c.prefix == literal(sql.database.prefix, String())  # on MariaDB the column itself takes bytes
        with engine.connect() as connection:
            assert connection.scalar(select(func.count()).select_from(table).where(is_mine)) == 2

    def test_commit_with_a_function(self, sql: SqlBackend, engine: Engine) -> None:
        record = new_record()
        transaction = sql.shared.open(Connection)
        transaction.handle.execute(text("INSERT INTO saga_key VALUES ('mine')"))
        transaction.commit(lambda backend: backend.sagas.insert(record, effects(record, line=entry(record, version=1))))
        transaction.close()
        assert found(sql, by_id(record.id)).version == 1
        with engine.connect() as connection:
            assert connection.scalar(text("SELECT id FROM saga_key")) == "mine"

    def test_database_without_these_tables(self, place: Place, engine: Engine) -> None:
        with (
            closing(place.open(table_prefix="Late_")) as late,
            Session(engine) as session,
            pytest.raises(ConfigurationError, match="Late_saga_database"),
        ):
            late.shared.add(session, [outgoing()], lambda cause: None)


class TestRefused:
    """Values that are no names."""

    @pytest.mark.parametrize("option", ["schema", "table_prefix"])
    @pytest.mark.parametrize("value", ["a b", "1a", "a-b", "a.b", 'a"b', "a`b", "é", "a\n", "a" * 64])
    def test_what_is_no_name(self, option: str, value: str) -> None:
        with pytest.raises(ConfigurationError, match=rf"{option} is .*letters from A to Z or a to z, digits and underscores"):
            SqlBackend("postgresql://localhost/shop", prefix="", options={option: value})

    @pytest.mark.parametrize("option", ["schema", "table_prefix"])
    def test_what_is_no_text(self, option: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{option} must be a text, not of type int"):
            SqlBackend("postgresql://localhost/shop", prefix="", options={option: 1})

    def test_schema_in_sqlite(self) -> None:
        with pytest.raises(ConfigurationError, match="SQLite has no schemas"):
            SqlBackend("sqlite://", prefix="", options={"schema": "orders"})


class TestWithoutOptions:
    """Nothing changes."""

    def test_tables_are_those_of_the_module(self) -> None:
        assert read_names(DEFAULTS, "postgresql") == OURS
        assert [OURS.table(table) for table in metadata.sorted_tables] == metadata.sorted_tables

    def test_dialect_is_that_of_the_engine(self) -> None:
        with closing(SqlBackend("sqlite://", prefix="")) as backend:
            assert backend.database.names.used_by(backend.database.engine.dialect) is backend.database.engine.dialect


@pytest.mark.parametrize("prefix", ["x", "x" * 40], ids=["short", "longest"])
@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_every_name_begins_with_the_prefix(place: Place, prefix: str) -> None:
    """Those that PostgreSQL makes itself, too: it would cut them if they were too long."""
    with closing(place.open(schema=unique("names"), table_prefix=prefix)) as backend:
        backend.prepare(create_schema=True, processes=1)
        update(backend, start(backend))
        statement = "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = :name"
        with backend.database.connect() as connection:
            names = connection.scalars(
                text(f"{statement} AND relkind IN ('r', 'i', 'S')"), {"name": backend.database.names.schema}
            ).all()
    assert [name for name in names if not name.startswith(f"{prefix}saga_")] == []
    rest = {name.removeprefix(prefix) for name in names}
    own = {each.name for table in metadata.tables.values() for each in (table, *table.indexes)}
    assert {"saga_aggregator_pkey", "saga_buffer_number_seq", "saga_instance_key", *own} <= rest


def test_schema_with_the_name_of_a_table() -> None:
    """Only the table has the prefix."""
    names = Names(schema="saga_outbox", prefix="shop_")
    with closing(SqlBackend("sqlite://", prefix="")) as backend:
        compiled = select(outbox.c.id).compile(dialect=names.used_by(backend.database.engine.dialect))
    assert str(compiled).split() == ["SELECT", "saga_outbox.shop_saga_outbox.id", "FROM", "saga_outbox.shop_saga_outbox"]
