"""The tables: created by the first process, checked by all, printed for operators."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Dialect, Insert, Table, insert, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

from celery_sagas.connections import OnFailure
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.layouts import Layout
from celery_sagas.stores.sql.connection.dialects import SqlDialect
from celery_sagas.stores.sql.connection.location import SqlLocation
from celery_sagas.stores.sql.tables import LAYOUT, OPTIONAL, layout, metadata


def prepare_schema(connection: Connection, dialect: SqlDialect, location: SqlLocation, *, create: bool) -> None:
    """Create the tables that are missing, and check the layout of those that are there.

    Raises:
        ConfigurationError: The tables are missing and not to be created, or have a layout on which this code cannot run.
    """
    is_complete, stored = _look_at(connection)
    if create and stored in (None, LAYOUT) and not is_complete:
        with _locked(connection, dialect):
            _create_missing(connection)
        is_complete, stored = _look_at(connection)
    if stored is None or (stored == LAYOUT and not is_complete):
        raise ConfigurationError(
            f"the saga tables are missing in {location.shown}",
            "Set saga_create_schema to True, or run the statements that `celery -A proj sagas schema` prints",
        )
    if remedy := stored.remedy(LAYOUT.version):
        raise ConfigurationError(
            f"the saga tables in {location.shown} have the layout {stored.version}, on which code for {stored.oldest} or later "
            f"runs; this release of celery-sagas knows {LAYOUT.version}",
            remedy,
        )
    if create and stored == LAYOUT:
        _create_optional(connection, dialect)


def _look_at(connection: Connection) -> tuple[bool, Layout | None]:
    """Return whether the tables exist, and their layout: in this order, since another process may create them in between."""
    is_complete = _is_complete(connection)
    return is_complete, _stored_layout(connection)


def _stored_layout(connection: Connection) -> Layout | None:
    if not inspect(connection).has_table(layout.name):
        return None
    row = connection.execute(select(layout.c.version, layout.c.oldest)).first()
    return Layout(*row) if row else None


def _is_complete(connection: Connection) -> bool:
    """Return whether the tables exist: the layout's row is written when all do, and a newer version may have added a table."""
    if _stored_layout(connection) is None:
        return False
    there = inspect(connection)
    return all(there.has_table(name) for name in metadata.tables.keys() - OPTIONAL)


def _create_optional(connection: Connection, dialect: SqlDialect) -> None:
    """Create the optional tables that are missing, if this user may: everything works without them."""
    there = inspect(connection)
    if missing := [metadata.tables[name] for name in OPTIONAL if not there.has_table(name)]:
        with suppress(DBAPIError), _locked(connection, dialect):
            for table in missing:
                table.create(connection, checkfirst=True)


def _create_missing(connection: Connection) -> None:
    """Create what is missing; the layout's version comes last, so that an interrupted run is continued."""
    if _is_complete(connection):
        return
    for table in metadata.sorted_tables:
        table.create(connection, checkfirst=True)
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    if _stored_layout(connection) is None:
        connection.execute(_insert_layout())


@contextmanager
def _locked(connection: Connection, dialect: SqlDialect) -> Iterator[None]:
    """Keep other processes from creating tables; a connection over which that fails is closed, which ends the lock."""
    for statement in dialect.lock_schema:
        connection.exec_driver_sql(statement)
    with OnFailure(connection.invalidate):
        yield
        for statement in dialect.unlock_schema:
            connection.exec_driver_sql(statement)


def ddl(location: SqlLocation) -> str:
    """Return the statements that create the tables in the database at a location."""
    dialect: Dialect = location.url.get_dialect()()
    statements = [str(element.compile(dialect=dialect)).strip() for table in metadata.sorted_tables for element in _create(table)]
    statements.append(str(_insert_layout().compile(dialect=dialect, compile_kwargs={"literal_binds": True})))
    return "".join(f"{statement};\n\n" for statement in statements)


def _create(table: Table) -> list[ExecutableDDLElement]:
    return [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]


def _insert_layout() -> Insert:
    return insert(layout).values(**LAYOUT._asdict())
