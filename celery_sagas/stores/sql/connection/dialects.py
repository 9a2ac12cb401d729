"""The differences between the databases around the statements: connecting, beginning, locking the schema."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine.interfaces import DBAPICursor

#: Seconds after which a wait for another worker that creates the tables is given up.
_SCHEMA_WAIT = 60
#: An arbitrary number that is unlikely to be used for another advisory lock.
_SCHEMA_LOCK = 7_235_423_791

#: Whatever the default of the role or the database is.
_ISOLATION = "ISOLATION LEVEL READ COMMITTED"
#: A plan may be made while a table is nearly empty, and stay in use when it has a million rows, until their statistics come:
#: a table scan, or a sort, is quick at first, and slow afterwards. Every statement in a transaction has its index. One that has
#: to sort is believed to be costly, and would be compiled each time, which takes a hundred times as long as running it.
_PLAN_POSTGRESQL = "; ".join(
    f"SET LOCAL {each} = off"
    for each in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit")
)


@dataclass(frozen=True, slots=True)
class SqlDialect:
    """One kind of database."""

    paramstyle: str
    connect_args: Callable[[Mapping[str, Any]], dict[str, Any]]
    timeouts: Callable[[Mapping[str, Any]], dict[str, Any]]  #: arguments that end a wait; a URL's query comes before them
    on_connect: Callable[[DBAPICursor], None]
    on_connect_shared: Callable[[DBAPICursor], None]  #: of connections over which users write, too
    has_clock: bool  #: whether the server has one that is not this machine's
    begin: str
    begin_shared: str  #: empty where the driver begins a transaction with its first statement
    lock_schema: tuple[str, ...]
    unlock_schema: tuple[str, ...]
    plan: str = ""  #: has the statements that follow in a transaction use our indexes
    #: Queries the size in bytes from which the server refuses a statement, which may look as if the connection was lost.
    statement_limit: str = ""


def _postgresql_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"autocommit": True, "connect_timeout": int(options["connect_timeout"]), "client_encoding": "utf8"}


def _mysql_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"autocommit": True, "connect_timeout": options["connect_timeout"], "charset": "utf8mb4"}


def _sqlite_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"isolation_level": None, "timeout": options["busy_timeout"], "check_same_thread": False}


def _postgresql_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Detect soon that the server's machine is gone; ``bound_answers`` does the rest."""
    keepalives = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
    return {**keepalives, "tcp_user_timeout": int(options["answer_timeout"] * 1000)}


def _mysql_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"read_timeout": options["answer_timeout"], "write_timeout": options["answer_timeout"]}


def _no_timeouts(options: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _set_up_postgresql(cursor: Any) -> None:
    """Let each statement see what others have committed, whatever the role's default is; change nothing where it does.

    Nor behind a pooler, which gives the connection to others, too: a setting would apply to them. It shows its clients
    another process id than PostgreSQL does.
    """
    name, wanted, shown = "default_transaction_isolation", "read committed", cursor.connection.pgconn.backend_pid
    cursor.execute(
        f"SELECT set_config('{name}', '{wanted}', false) "
        f"WHERE current_setting('{name}') <> '{wanted}' AND pg_backend_pid() = {shown:d}"
    )


def _set_up_mysql(cursor: DBAPICursor) -> None:
    """Refuse what does not fit instead of cutting it; let a retry see the winner."""
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute("SET SESSION sql_mode = 'TRADITIONAL'")


def _set_up_nothing(cursor: DBAPICursor) -> None:
    """Leave the server's settings."""


def _set_up_shared_mysql(cursor: DBAPICursor) -> None:
    """Refuse what does not fit, with the other modes and all settings that the server has for the user's own connections."""
    cursor.execute("SET SESSION sql_mode = CONCAT_WS(',', @@sql_mode, 'STRICT_ALL_TABLES')")


def _set_up_sqlite(cursor: DBAPICursor) -> None:
    _use_write_ahead_log(cursor)
    cursor.execute("PRAGMA synchronous = FULL")


def _use_write_ahead_log(cursor: DBAPICursor) -> None:
    """Switch a new file to WAL; SQLite does not wait for others that open it at the same time, so wait here."""
    for delay in (0.01, 0.05, 0.1, 0.5, 1.0):
        cursor.execute("PRAGMA journal_mode")
        if cursor.fetchone() != ("delete",):
            return
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except Exception as exc:
            if getattr(exc, "sqlite_errorname", "") != "SQLITE_BUSY":
                raise
            time.sleep(delay)


DIALECTS: Mapping[str, SqlDialect] = {
    "postgresql": SqlDialect(
        paramstyle="pyformat",
        connect_args=_postgresql_arguments,
        timeouts=_postgresql_timeouts,
        on_connect=_set_up_postgresql,
        on_connect_shared=_set_up_nothing,
        has_clock=True,
        begin=f"BEGIN {_ISOLATION}; {_PLAN_POSTGRESQL}",
        begin_shared="",
        plan=_PLAN_POSTGRESQL,
        lock_schema=(
            f"BEGIN {_ISOLATION}",
            "SET LOCAL statement_timeout = 0",
            f"SET LOCAL lock_timeout = '{_SCHEMA_WAIT}s'",
            f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})",
        ),
        unlock_schema=("COMMIT",),
    ),
    "mysql": SqlDialect(
        paramstyle="pyformat",
        connect_args=_mysql_arguments,
        timeouts=_mysql_timeouts,
        on_connect=_set_up_mysql,
        on_connect_shared=_set_up_shared_mysql,
        has_clock=True,
        begin="BEGIN",
        begin_shared="",
        lock_schema=(f"SELECT GET_LOCK('celery_sagas', {_SCHEMA_WAIT})",),
        unlock_schema=("SELECT RELEASE_LOCK('celery_sagas')",),
        statement_limit="SELECT @@max_allowed_packet",
    ),
    "sqlite": SqlDialect(
        paramstyle="named",
        connect_args=_sqlite_arguments,
        timeouts=_no_timeouts,
        on_connect=_set_up_sqlite,
        on_connect_shared=_set_up_sqlite,
        has_clock=False,
        begin="BEGIN IMMEDIATE",
        begin_shared="BEGIN IMMEDIATE",
        lock_schema=("BEGIN IMMEDIATE",),
        unlock_schema=("COMMIT",),
    ),
}
