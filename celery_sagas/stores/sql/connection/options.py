"""``saga_backend_options`` of an SQL backend, and the engine that they make."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Engine, NullPool, StaticPool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor

from celery_sagas.connections import MOST_IDLE
from celery_sagas.errors import ConfigurationError, MisuseError
from celery_sagas.stores.sql.connection.answers import bound_answers
from celery_sagas.stores.sql.connection.dialects import SqlDialect
from celery_sagas.stores.sql.connection.location import SqlLocation

#: Every option with its default. Times are seconds.
DEFAULTS: Mapping[str, Any] = {
    "pool_recycle": 1800,  # the age at which a connection is replaced; -1: never
    "connect_timeout": 5,
    "answer_timeout": 30,  # but SQLite: how long the server may be silent
    "busy_timeout": 5,  # SQLite only: how long to wait for another writer
    "connect_args": {},
    "schema": "",  # but SQLite: the schema (MySQL: the database) of the tables; empty: that of the connection
    "table_prefix": "",  # begins the name of every table, index and constraint
}
#: What the value of an option must be, unless it is a number.
_KINDS: Mapping[str, tuple[Any, str]] = {
    "connect_args": (Mapping, "a mapping"),
    **dict.fromkeys(("schema", "table_prefix"), (str, "a text")),
}
#: In the ``info`` of a shared connection while the library ends its transaction.
ENDING = "celery_sagas.ending"
ENDED = "the transaction is the library's to commit, together with what it writes itself"
#: A statement that ends a transaction.
_ENDS = re.compile(r"\s*(COMMIT|END|ROLLBACK|ABORT)\b(?!\s+(?:(?:WORK|TRANSACTION)\s+)?TO\b)", re.IGNORECASE)
#: Every statement is its own transaction, or begins and ends one itself.
_OURS = ("autocommit", "isolation_level", "execution_options")


def read_options(options: Mapping[str, object], location: SqlLocation) -> dict[str, Any]:
    """Check the options and fill in the defaults.

    Raises:
        ConfigurationError: One is unknown, of the wrong type, or takes the control of transactions away.
    """
    connect_args = options.get("connect_args", {})
    _check_type("connect_args", connect_args)
    for given in (options, connect_args, location.url.query):
        _refuse_ours(given)
    if unknown := sorted(set(options) - set(DEFAULTS)):
        raise ConfigurationError(f"unknown option {', '.join(unknown)} of an SQL backend", f"Known are {', '.join(DEFAULTS)}")
    for name in options:
        _check_type(name, options[name])
    for name in ("connect_timeout", "answer_timeout"):
        if options.get(name, 1) <= 0:  # type: ignore[operator]
            raise ConfigurationError(f"the option {name} is {options[name]}", "Set it to more than 0 seconds")
    return {**DEFAULTS, **options}


def _refuse_ours(given: Any) -> None:
    if forced := sorted(set(given) & set(_OURS)):
        raise ConfigurationError(
            f"the option {', '.join(forced)} cannot be set: a commit would not be all or nothing",
            "Leave it out; the backend sets it",
        )


def _check_type(name: str, value: object) -> None:
    kind, expected = _KINDS.get(name, (int | float, "a number"))
    if not isinstance(value, kind):
        raise ConfigurationError(f"the option {name} must be {expected}, not of type {type(value).__name__}")


def make_engine(location: SqlLocation, dialect: SqlDialect, options: Mapping[str, Any]) -> Engine:
    """Make an engine whose connections are in autocommit, and that keeps none: ``Connections`` does."""
    engine = create_engine(
        location.url,
        poolclass=StaticPool if location.in_memory else NullPool,  # in memory, the connection is the database
        pool_reset_on_return=None,
        paramstyle=dialect.paramstyle,
        connect_args={**_timeouts(location, dialect, options), **dialect.connect_args(options), **options["connect_args"]},
    )
    if location.arguments is not None:
        ours = set(dialect.connect_args(options)) - {"connect_timeout"}
        _add_arguments(engine, location.arguments, {*ours, *options["connect_args"]})
    _bound_waits(engine, options)
    event.listen(engine, "connect", lambda connection, entry: _set_up(dialect.on_connect, connection))
    return engine


def _add_arguments(engine: Engine, arguments: Callable[[], Mapping[str, Any]], fixed: Collection[str]) -> None:
    """Add arguments before each connection, but for some: they come before timeouts, as a URL's query does."""

    def add(dialect: object, entry: object, positional: object, named: dict[str, Any]) -> None:
        named.update({name: value for name, value in arguments().items() if name not in fixed})

    event.listen(engine, "do_connect", add)


def make_shared_engine(location: SqlLocation, dialect: SqlDialect, options: Mapping[str, Any]) -> Engine:
    """Make an engine for transactions in which users write: over the same driver, with a pool that leaves none open.

    The isolation level is the server's default, as for the user's own engines. As many connections may be open as there are
    transactions at once, as of our own.
    """
    arguments = {**_timeouts(location, dialect, options), **dialect.connect_args(options), **options["connect_args"]}
    arguments.pop("autocommit", None)
    pooling: dict[str, Any] = {"pool_size": MOST_IDLE, "max_overflow": -1, "pool_recycle": options["pool_recycle"]}
    engine = create_engine(location.url, paramstyle=dialect.paramstyle, connect_args=arguments, **pooling)
    _bound_waits(engine, options)
    event.listen(engine, "connect", lambda connection, entry: _set_up(dialect.on_connect_shared, connection))
    event.listen(engine, "connect", lambda connection, entry: connection.rollback())
    if begin := dialect.begin_shared:
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    event.listen(engine, "commit", _refuse_to_commit)
    event.listen(engine, "before_cursor_execute", _refuse_to_end)
    return engine


def _refuse_to_commit(connection: Connection) -> None:
    """Refuse a commit by the user: it would come before that of the library, and without it.

    Raises:
        MisuseError: The library is not about to commit.
    """
    if ENDING not in connection.info:
        raise MisuseError(ENDED, "Leave commit() out; begin_nested() makes a part that can be rolled back by itself")


def _refuse_to_end(connection: Connection, cursor: object, statement: str, *_: object) -> None:
    """Refuse a text of the user's that ends the transaction, which neither SQLAlchemy nor the library would notice.

    Raises:
        MisuseError: It is ``COMMIT`` or ``ROLLBACK``, but not to a savepoint.
    """
    if (ends := _ENDS.match(statement)) is not None:
        raise MisuseError(ENDED, f"Leave {ends[1].upper()} out; begin_nested() makes a part that can be rolled back by itself")


def _bound_waits(engine: Engine, options: Mapping[str, Any]) -> None:
    if engine.name == "postgresql":
        bound_answers(engine, options["answer_timeout"])
        if "prepare_threshold" not in options["connect_args"]:
            event.listen(engine, "connect", _prepare_nothing_in_a_pool)


def _prepare_nothing_in_a_pool(connection: Any, _: object) -> None:
    """Have psycopg prepare no statement on a connection that ends at a pooler, such as PgBouncer.

    A pooler may give each transaction another connection to PostgreSQL, where a statement of that name is missing, or is another
    one. It gives its clients process ids of its own making, which they need to cancel a statement: PostgreSQL has another one.
    """
    cursor = connection.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    (pid,) = cursor.fetchone()
    cursor.close()
    if pid != connection.pgconn.backend_pid:
        connection.prepare_threshold = None


def _timeouts(location: SqlLocation, dialect: SqlDialect, options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in dialect.timeouts(options).items() if name not in location.url.query}


def _set_up(on_connect: Callable[[DBAPICursor], None], connection: DBAPIConnection) -> None:
    cursor = connection.cursor()
    on_connect(cursor)
    cursor.close()
