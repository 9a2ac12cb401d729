"""Checks that a server, by its settings, keeps what was committed."""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from celery_sagas.errors import ConfigurationError, UnsafeBackend
from celery_sagas.stores.sql.connection.names import Names
from celery_sagas.stores.sql.tables import metadata

#: Older servers have no ``SKIP LOCKED``.
_OLDEST_MYSQL = (8, 0, 1)
_OLDEST_MARIADB = (10, 6)


def _check_postgresql(connection: Connection, names: Names) -> list[str]:
    settings = connection.exec_driver_sql(
        "SELECT current_setting('transaction_read_only'), current_setting('synchronous_commit'), current_setting('fsync')"
    )
    read_only, synchronous_commit, fsync = settings.one()
    if read_only == "on":
        raise _read_only("the server is a replica in recovery, or default_transaction_read_only is on")
    warnings = []
    if synchronous_commit == "off":
        warnings.append("PostgreSQL runs with synchronous_commit=off: a crash of the server loses commits of the last moments.")
    if fsync == "off":
        warnings.append("PostgreSQL runs with fsync=off: a crash of the machine can destroy the database.")
    return warnings


def _check_mysql(connection: Connection, names: Names) -> list[str]:
    _check_mysql_version(connection)
    settings = connection.exec_driver_sql("SELECT @@read_only, @@log_bin, @@binlog_format, @@innodb_flush_log_at_trx_commit")
    read_only, log_bin, binlog_format, flush = settings.one()
    if read_only:
        raise _read_only("the server is a replica, or read_only is on")
    if log_bin and binlog_format == "STATEMENT":
        raise ConfigurationError(
            "the server runs with binlog_format=STATEMENT, which allows no writes under READ COMMITTED",
            "Set binlog_format=ROW on it",
        )
    _check_table_engines(connection, names)
    if flush == 1:
        return []
    return [f"The server runs with innodb_flush_log_at_trx_commit={flush}: a crash loses commits of the last second."]


def _check_mysql_version(connection: Connection) -> None:
    is_mariadb = bool(getattr(connection.dialect, "is_mariadb", False))
    oldest = _OLDEST_MARIADB if is_mariadb else _OLDEST_MYSQL
    version = connection.dialect.server_version_info or ()
    if version < oldest:
        name, numbers = "MariaDB" if is_mariadb else "MySQL", ".".join(map(str, oldest))
        raise ConfigurationError(f"the server is {name} {'.'.join(map(str, version))}", f"Use {name} {numbers} or later")


def _check_table_engines(connection: Connection, names: Names) -> None:
    """Refuse tables of ours that were created with, or converted to, an engine without transactions."""
    tables = connection.exec_driver_sql(
        "SELECT table_name, engine FROM information_schema.tables "
        "WHERE table_schema = COALESCE(%(schema)s, DATABASE()) AND engine <> 'InnoDB'",
        {"schema": names.schema or None},
    )
    ours = {names.of(name) for name in metadata.tables}
    for table, engine in tables:
        if table in ours:
            raise UnsafeBackend(
                f"the table {table} has the engine {engine}, which knows no transactions",
                f"Run ALTER TABLE {table} ENGINE=InnoDB",
            )


def _check_sqlite(connection: Connection, names: Names) -> list[str]:
    """Try to write: SQLite has no other check for a read-only file. One that somebody is writing to is none.

    That may be the caller itself, whose first message in a test with ``task_always_eager`` comes after a row of its own.
    """
    try:
        _begin_at_once(connection)
    except DBAPIError as exc:
        if getattr(exc.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            return []
        raise
    try:
        connection.exec_driver_sql("CREATE TABLE saga_probe (probe)")
        connection.exec_driver_sql("ROLLBACK")
    except DBAPIError as exc:
        if getattr(exc.orig, "sqlite_errorname", "").startswith("SQLITE_READONLY"):
            raise _read_only("the file cannot be written") from exc
        raise
    return []


def _begin_at_once(connection: Connection) -> None:
    """Begin to write, without waiting for another writer."""
    patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience:d}")


def _read_only(why: str) -> ConfigurationError:
    return ConfigurationError(f"the saga backend is read-only: {why}", "Let saga_backend name a database that can be written")


#: By database: refuses a server that cannot keep the promise, and returns warnings about one that may not.
CHECKS: Mapping[str, Callable[[Connection, Names], list[str]]] = {
    "postgresql": _check_postgresql,
    "mysql": _check_mysql,
    "sqlite": _check_sqlite,
}
