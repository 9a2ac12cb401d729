"""Checks of a connection that is not ours: that it leads to the database of the sagas, and has transactions."""

from typing import Any

from sqlalchemy import Connection, inspect, select

from celery_sagas.errors import ConfigurationError, MisuseError
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.identity import identity_of
from celery_sagas.stores.sql.tables import database as identity

#: By the name of our dialects, those of SQLAlchemy that lead to the same kind of database.
_SAME_KIND = {"mysql": ("mysql", "mariadb")}
_SAME_DATABASE = "Let saga_outbox_backend, or saga_backend, name the database of this connection"


def check_connection(connection: Connection, database: Database) -> None:
    """Refuse a connection to another database: this takes a few statements, and holds for all connections of its engine.

    Raises:
        ConfigurationError: It leads to another one, or to a pooler behind which prepared statements fail.
    """
    kind, shown = connection.dialect.name, database.location.shown
    if kind not in _SAME_KIND.get(database.name, (database.name,)):
        raise ConfigurationError(f"the connection leads to {kind}, and the messages are kept in {shown}", _SAME_DATABASE)
    known = database.names.table(identity)
    if not inspect(connection).has_table(known.name, known.schema):
        remedy = f"{_SAME_DATABASE}. If it does, start a worker there, or apply what `celery -A proj sagas schema` prints"
        raise ConfigurationError(f"the database of the connection has no table {known.fullname}", remedy)
    here = identity_of(database)  # first: it may have to be given
    query, ours = select(known.c.id), {"schema_translate_map": None}  # the caller's map is for tables of the caller's
    if _text(connection.execute(query, execution_options=ours).scalar()) != here:
        raise ConfigurationError(f"the connection leads to another database than {shown}", _SAME_DATABASE)
    _refuse_prepared_statements(connection)


def refuse_autocommit(connection: Connection) -> None:
    """Refuse a connection that commits each statement.

    Raises:
        MisuseError: It does.
    """
    if _is_autocommit(connection):
        problem = "the connection is in autocommit, so that there is no transaction with which a message could be sent"
        raise MisuseError(problem, "Begin one: give using= a session or a connection whose isolation level is not AUTOCOMMIT")


def _is_autocommit(connection: Connection) -> bool:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite" and getattr(driver, "autocommit", False) is not True:  # which Python has since 3.12
        # with an event that begins transactions, the driver begins none itself
        return bool(driver.isolation_level is None and not driver.in_transaction)
    if (get := getattr(driver, "get_autocommit", None)) is not None:
        return bool(get())
    return getattr(driver, "autocommit", False) is True


def _refuse_prepared_statements(connection: Connection) -> None:
    """Refuse psycopg's prepared statements behind a pooler, which gives each transaction another connection to PostgreSQL.

    A pooler shows its clients another process id than PostgreSQL does.
    """
    driver: Any = connection.connection.driver_connection
    pgconn = getattr(driver, "pgconn", None)
    if pgconn is None or driver.prepare_threshold is None:
        return
    if connection.exec_driver_sql("SELECT pg_backend_pid()").scalar() != pgconn.backend_pid:
        problem = (
            "the connection leads through a pooler, and psycopg prepares statements, which are missing after the next commit"
        )
        raise ConfigurationError(problem, 'Make the engine with connect_args={"prepare_threshold": None}')


def _text(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value
