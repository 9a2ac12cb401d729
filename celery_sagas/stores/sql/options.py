"""``saga_backend_options`` of an SQL backend, and the engine that they make."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, QueuePool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from celery_sagas.errors import ConfigurationError
from celery_sagas.stores.sql.dialects import SqlDialect
from celery_sagas.stores.sql.location import Location

#: Every option with its default; those of the pool are SQLAlchemy's. Times are seconds.
DEFAULTS: Mapping[str, Any] = {
    "pool_size": 5,
    "max_overflow": 10,
    "pool_timeout": 30,
    "pool_recycle": 1800,
    "connect_timeout": 5,
    "busy_timeout": 5,  # SQLite only: how long to wait for another writer
    "connect_args": {},
}
#: Every statement is its own transaction, or begins and ends one itself.
_OURS = ("autocommit", "isolation_level", "execution_options")


def read_options(options: Mapping[str, object], location: Location) -> dict[str, Any]:
    """Check the options and fill in the defaults.

    Raises:
        ConfigurationError: One is unknown, of the wrong type, or takes the control of transactions away.
    """
    connect_args = options.get("connect_args", {})
    _check_type("connect_args", connect_args, Mapping)
    for given in (options, connect_args, location.url.query):
        _refuse_ours(given)
    if unknown := sorted(set(options) - set(DEFAULTS)):
        raise ConfigurationError(f"unknown option {', '.join(unknown)} of an SQL backend", f"Known are {', '.join(DEFAULTS)}")
    for name in set(options) - {"connect_args"}:
        _check_type(name, options[name], int | float)
    return {**DEFAULTS, **options}


def _refuse_ours(given: Any) -> None:
    if forced := sorted(set(given) & set(_OURS)):
        raise ConfigurationError(
            f"the option {', '.join(forced)} cannot be set: a commit would not be all or nothing",
            "Leave it out; the backend sets it",
        )


def _check_type(name: str, value: object, kind: Any) -> None:
    if not isinstance(value, kind):
        expected = "a mapping" if kind is Mapping else "a number"
        raise ConfigurationError(f"the option {name} must be {expected}, not of type {type(value).__name__}")


def make_engine(location: Location, dialect: SqlDialect, options: Mapping[str, Any]) -> Engine:
    """Make an engine whose connections are in autocommit, and on which the pool runs nothing of its own."""
    engine = create_engine(
        location.url,
        poolclass=QueuePool,
        pool_reset_on_return=None,
        paramstyle=dialect.paramstyle,
        connect_args={**dialect.connect_args(options), **options["connect_args"]},
        **_pool(location, options),
    )
    event.listen(engine, "connect", lambda connection, entry: _set_up(dialect, connection, entry))
    return engine


def _pool(location: Location, options: Mapping[str, Any]) -> dict[str, Any]:
    if location.in_memory:  # the connection is the database: threads take turns
        return {"pool_size": 1, "max_overflow": 0, "pool_timeout": options["pool_timeout"]}
    return {name: options[name] for name in ("pool_size", "max_overflow", "pool_timeout", "pool_recycle")}


def _set_up(dialect: SqlDialect, connection: DBAPIConnection, entry: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    dialect.on_connect(cursor)
    cursor.close()
