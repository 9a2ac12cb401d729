"""The migration of the tables to the layout of this release, while workers of the release before go on."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeAlias

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.location import SqlLocation
from celery_sagas.stores.sql.connection.names import Names
from celery_sagas.stores.sql.connection.options import make_engine
from celery_sagas.stores.sql.expansion import Step, statements, steps
from celery_sagas.stores.sql.schema import locked, refusal_of, stored_layout
from celery_sagas.stores.sql.tables import LAYOUT, audit, instance, outbox

#: Seconds between two looks whether another process has ended, or whether a table is free.
_PAUSE_S: Final = 0.5
#: How often a table that others have locked is tried. Commits wait behind each try, for no longer than the server does then.
_TRIES: Final = 60
#: Seconds: longer than the making of an index takes.
_ENDLESS_S: Final = 7 * 86_400
#: An arbitrary number: not that of ``dialects``, since a process that waits for it has a snapshot, for whose end the making of an
#: index would wait.
_LOCK_POSTGRESQL: Final = "SELECT pg_try_advisory_xact_lock(7235423792)"
#: Names have 64 characters at most, and apply to all databases of the server.
_LOCK_MYSQL: Final = "SELECT GET_LOCK(CONCAT('celery_sagas ', MD5(COALESCE({}, DATABASE()))), 0)"
#: MySQL, for which the second setting is a comment, has no such limit.
_SET_UP_MYSQL: Final = "SET SESSION lock_wait_timeout = 2 /*M!, max_statement_time = 0 */"
#: Finds whether the server makes an index, perhaps for a process that was killed.
_MAKES_INDEX: Final = "SELECT 1 FROM pg_stat_progress_create_index WHERE relid IN ({})"
#: Waits but a moment for the table, behind which commits would wait, too.
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '2s'"

Connect: TypeAlias = Callable[[], AbstractContextManager[Connection]]


def migrate(database: Database) -> list[str]:
    """Add what is missing, and note the layout last; return what was done.

    Raises:
        ConfigurationError: The tables are missing, or have a layout that cannot be migrated.
    """
    with database.errors.translated(), database.gate, _connecting(database) as connect, connect() as connection:
        if not _can_be_migrated(connection, database):
            return []
        with _ALONE[database.name](connection, connect, database):
            return _add(connection, database)


def migration(location: SqlLocation, names: Names) -> str:
    """Return the statements that migrate the tables in the database at a location."""
    return "".join(f"{statement};\n\n" for statement in statements(location.url.get_dialect()(), names))


def _can_be_migrated(connection: Connection, database: Database) -> bool:
    """Return whether something may be missing.

    Raises:
        ConfigurationError: The tables are missing, or have a layout that cannot be migrated.
    """
    names, shown = database.names, database.location.shown
    stored = stored_layout(connection, names)
    if stored is None:
        problem = f"nothing is stored in {shown} yet: the {names.shown} are missing"
        raise ConfigurationError(problem, "Name the database of the workers; where there are none yet, start one of this release")
    if not stored.leads_to(LAYOUT) and (error := refusal_of(stored, database)):
        raise error
    return stored.version <= LAYOUT.version


@contextmanager
def _connecting(database: Database) -> Iterator[Connect]:
    """Give what connects for as long as the statements take; SQLite's connection in memory is the database."""
    if database.name == "sqlite":
        yield database.engine.connect
        return
    engine: Engine = make_engine(database.location, database.dialect, {**database.options, "answer_timeout": _ENDLESS_S})
    try:
        yield engine.connect
    finally:
        engine.dispose()


@contextmanager
def _alone_on_postgresql(connection: Connection, connect: Connect, database: Database) -> Iterator[None]:
    """Keep other processes from migrating: by a lock of another connection, on which nothing runs meanwhile.

    The making of an index waits for every snapshot, and cannot run in a transaction, in which a lock holds behind a pooler, too.
    """
    _wait_for_nothing_else(connection)
    format_table = connection.dialect.identifier_preparer.format_table
    tables = (format_table(database.names.table(table)) for table in (instance, outbox, audit))
    makes_index = _MAKES_INDEX.format(", ".join(f"to_regclass('{table}')" for table in tables))
    with connect() as guard:
        _poll(lambda: _locks(guard))
        _poll(lambda: not _query(connection)(makes_index))
        yield
        guard.exec_driver_sql("COMMIT")


def _locks(guard: Connection) -> bool:
    """Begin a transaction that has the lock, and lasts; return whether that was possible."""
    guard.exec_driver_sql("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 0")
    if guard.exec_driver_sql(_LOCK_POSTGRESQL).scalar_one():
        return True
    guard.exec_driver_sql("ROLLBACK")
    return False


def _wait_for_nothing_else(connection: Connection) -> None:
    """Give statements as long as they take, whatever the role's default is; change nothing at a pooler: see ``dialects``."""
    driver: Any = connection.connection.driver_connection
    connection.exec_driver_sql(
        "SELECT set_config('statement_timeout', '0', false), set_config('lock_timeout', '0', false) "
        f"WHERE pg_backend_pid() = {driver.pgconn.backend_pid:d}"
    )


@contextmanager
def _alone_on_mysql(connection: Connection, connect: Connect, database: Database) -> Iterator[None]:
    """Keep other processes from migrating, until the connection ends: the server goes on for one that was killed.

    Statements have as long as they take, but wait only a moment for the table.
    """
    connection.exec_driver_sql(_SET_UP_MYSQL)
    schema = database.names.schema
    lock = _LOCK_MYSQL.format(f"'{schema}'" if schema else "NULL")
    _poll(lambda: bool(connection.exec_driver_sql(lock).scalar_one()))
    yield


@contextmanager
def _alone_on_sqlite(connection: Connection, connect: Connect, database: Database) -> Iterator[None]:
    """Add all or nothing, in a transaction."""
    with locked(connection, database.dialect):
        yield


_ALONE: Mapping[str, Callable[[Connection, Connect, Database], AbstractContextManager[None]]] = {
    "postgresql": _alone_on_postgresql,
    "mysql": _alone_on_mysql,
    "sqlite": _alone_on_sqlite,
}


def _poll(is_ready: Callable[[], bool]) -> None:
    while not is_ready():
        time.sleep(_PAUSE_S)


def _add(connection: Connection, database: Database) -> list[str]:
    """Run what is to be run; look again, and go on, where others have locked the table."""
    done: list[str] = []
    for _ in range(_TRIES - 1):
        if _is_free(connection, database, done):
            return done
        time.sleep(_PAUSE_S)
    _run_all(connection, database, done)
    return done


def _is_free(connection: Connection, database: Database, done: list[str]) -> bool:
    """Run what is to be run, and note it; return ``False`` if others had locked the table for too long."""
    try:
        _run_all(connection, database, done)
    except DBAPIError as exc:
        if not isinstance(exc.orig, Exception) or database.errors.fault_of(exc.orig) is not Fault.LOCKED:
            raise
        return False
    return True


def _run_all(connection: Connection, database: Database, done: list[str]) -> None:
    for step in steps(_query(connection), connection.dialect, database.names):
        _run(connection, step)
        done.append(step.done)


def _run(connection: Connection, step: Step) -> None:
    if not (step.locks_table and connection.dialect.name == "postgresql"):
        connection.exec_driver_sql(step.text)
        return
    connection.exec_driver_sql(_BEGIN)
    try:
        connection.exec_driver_sql(step.text)
    except DBAPIError:
        connection.exec_driver_sql("ROLLBACK")
        raise
    connection.exec_driver_sql("COMMIT")


def _query(connection: Connection) -> Callable[[str], Sequence[Sequence[Any]]]:
    return lambda text: connection.exec_driver_sql(text).all()
