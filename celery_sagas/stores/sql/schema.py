"""The tables: created by the first process, checked by all, printed for operators."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Dialect, Insert, Table, insert, inspect, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, ExecutableDDLElement

from celery_sagas.connections import OnFailure
from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.layouts import Layout
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.dialects import SqlDialect
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.location import SqlLocation
from celery_sagas.stores.sql.connection.names import OURS, Names
from celery_sagas.stores.sql.expansion import column_steps
from celery_sagas.stores.sql.tables import LAYOUT, OPTIONAL, layout, metadata

_CREATES_TABLES = "Set saga_create_schema to True, or run the statements that `celery -A proj sagas schema` prints"


def prepare_schema(connection: Connection, database: Database, *, create: bool) -> None:
    """Create the tables that are missing, and the schema if it is, and check the layout of those that are there.

    Raises:
        ConfigurationError: The tables are missing and not to be created, or have a layout on which this code cannot run; or the
            schema is missing, and this user may not create it.
    """
    names, shown = database.names, database.location.shown
    is_complete, stored = look_at(connection, names)
    if create and stored in (None, LAYOUT) and not is_complete:
        with locked(connection, database.dialect):
            _create_schema(connection, database)
            _create_missing(connection, names)
        is_complete, stored = look_at(connection, names)
    if stored is None or (stored == LAYOUT and not is_complete):
        raise ConfigurationError(
            f"the {names.shown} are missing in {shown}",
            database.location.creates_tables or _CREATES_TABLES,
        )
    if error := refusal_of(stored, database):
        raise error
    if create and stored == LAYOUT:
        _create_optional(connection, database)


def refusal_of(stored: Layout, database: Database) -> ConfigurationError | None:
    """Return the error about a layout on which this code cannot run; ``None`` if it can."""
    remedy = stored.remedy(LAYOUT)
    if not remedy:
        return None
    if stored.leads_to(LAYOUT):
        remedy = database.location.creates_tables or f"{remedy}. With --sql it prints the statements instead"
    problem = (
        f"the {database.names.shown} in {database.location.shown} have the layout {stored.version}, on which code for "
        f"{stored.oldest} or later runs; this release of celery-sagas knows {LAYOUT.version}"
    )
    return ConfigurationError(problem, remedy)


def look_at(connection: Connection, names: Names) -> tuple[bool, Layout | None]:
    """Return whether the tables exist, and their layout: in this order, since another process may create them in between."""
    is_complete = _is_complete(connection, names)
    return is_complete, stored_layout(connection, names)


def stored_layout(connection: Connection, names: Names) -> Layout | None:
    """Return the layout of the tables; ``None`` if they are not all there."""
    table = names.table(layout)
    if not (_has_schema(connection, names) and _exists(connection, table)):
        return None
    row = connection.execute(select(table.c.version, table.c.oldest)).first()
    return Layout(*row) if row else None


def _is_complete(connection: Connection, names: Names) -> bool:
    """Return whether the tables exist: the layout's row is written when all do, and a newer version may have added a table."""
    if stored_layout(connection, names) is None:
        return False
    return all(_exists(connection, names.table(table)) for table in metadata.sorted_tables if table.name not in OPTIONAL)


def _has_schema(connection: Connection, names: Names) -> bool:
    """Return whether there is a schema: MySQL denies access to the tables of one that is not there, or not shown to its user."""
    return not names.schema or inspect(connection).has_schema(names.schema)


def _exists(connection: Connection, table: Table) -> bool:
    return inspect(connection).has_table(table.name, table.schema)


def _create_schema(connection: Connection, database: Database) -> None:
    """Create the schema if it is missing: whoever may not create one may still use one that is there."""
    if _has_schema(connection, database.names):
        return
    name = database.names.schema
    statement = CreateSchema(name, if_not_exists=True)
    try:
        connection.execute(statement)
    except DBAPIError as exc:
        if not isinstance(exc.orig, Exception) or database.errors.fault_of(exc.orig) is not Fault.DENIED:
            raise
        shown, text = database.location.shown, statement.compile(dialect=connection.dialect)
        raise ConfigurationError(
            f"the schema {name} is missing in {shown}, or not shown to its user, who may not create it",
            f"Run this as an administrator, and let that user create tables in it: {text}",
        ) from exc


def _create_optional(connection: Connection, database: Database) -> None:
    """Create the optional tables that are missing, if this user may: everything works without them."""
    tables = [database.names.table(metadata.tables[name]) for name in OPTIONAL]
    if missing := [table for table in tables if not _exists(connection, table)]:
        with suppress(DBAPIError), locked(connection, database.dialect):
            for table in missing:
                table.create(connection, checkfirst=True)


def _create_missing(connection: Connection, names: Names) -> None:
    """Create what is missing; the layout's version comes last, so that an interrupted run is continued."""
    if _is_complete(connection, names):
        return
    for table in map(names.table, metadata.sorted_tables):
        table.create(connection, checkfirst=True)
    for step in column_steps(lambda query: connection.exec_driver_sql(query).all(), connection.dialect, names):
        connection.exec_driver_sql(step.text)  # a process of the release before was interrupted
    for table in map(names.table, metadata.sorted_tables):
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    if stored_layout(connection, names) is None:
        connection.execute(_insert_layout(names))


@contextmanager
def locked(connection: Connection, dialect: SqlDialect) -> Iterator[None]:
    """Keep other processes from creating tables; a connection over which that fails is closed, which ends the lock."""
    for statement in dialect.lock_schema:
        connection.exec_driver_sql(statement)
    with OnFailure(connection.invalidate):
        yield
        for statement in dialect.unlock_schema:
            connection.exec_driver_sql(statement)


def ddl(location: SqlLocation, names: Names = OURS) -> str:
    """Return the statements that create the tables, under their names, in the database at a location."""
    return "".join(f"{statement};\n\n" for statement in statements_for(location.url.get_dialect()(), names))


def statements_for(dialect: Dialect, names: Names, existing: Collection[str] = ()) -> list[str]:
    """Return the statements that create the tables but for those that exist, by their names."""
    tables = [table for table in map(names.table, metadata.sorted_tables) if table.name not in existing]
    elements = [element for table in tables for element in _create(table)]
    if names.schema:
        elements.insert(0, CreateSchema(names.schema, if_not_exists=True))
    statements = [str(element.compile(dialect=dialect)).strip() for element in elements]
    if names.of(layout.name) not in existing:
        statements.append(str(_insert_layout(names).compile(dialect=dialect, compile_kwargs={"literal_binds": True})))
    return statements


def _create(table: Table) -> list[ExecutableDDLElement]:
    return [CreateTable(table), *map(CreateIndex, sorted(table.indexes, key=lambda index: str(index.name)))]


def _insert_layout(names: Names) -> Insert:
    return insert(names.table(layout)).values(**LAYOUT._asdict())
