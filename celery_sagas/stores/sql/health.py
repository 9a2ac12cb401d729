"""The health of a database: what it keeps, in which layout, and what its tables cost."""

from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import Connection, text

from celery_sagas.errors import ConfigurationError, UnsafeBackend
from celery_sagas.stores.health import Level, Remark, Subject
from celery_sagas.stores.sql.checks import CHECKS
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.names import Names
from celery_sagas.stores.sql.schema import look_at, refusal_of
from celery_sagas.stores.sql.tables import LAYOUT, instance, metadata

_CREATES_TABLES: Final = (
    "Start a worker, which creates them unless saga_create_schema is False; or run the statements that "
    "`celery -A proj sagas schema` prints"
)
#: Of fewer updates, and of fewer dead rows, a share says nothing.
_MANY: Final = 10_000
#: The least share of updates that touch no index, and the greatest one of dead rows.
_LEAST_HOT, _MOST_DEAD = 0.5, 0.2
_OLD_TRANSACTIONS: Final = (
    "end transactions that are open for long, since they keep dead rows: SELECT pid, xact_start FROM pg_stat_activity ORDER BY 2"
)
_STATISTICS: Final = text(
    "SELECT n_tup_upd, n_tup_hot_upd, n_live_tup, n_dead_tup FROM pg_stat_user_tables "
    "WHERE relid = to_regclass(CAST(:path AS text))"
)


def health_of(database: Database) -> list[Remark]:
    """Return what operators should know of a database; an SQLite file that does not exist is not made.

    Raises:
        StoreUnavailable: It cannot be reached.
    """
    if database.location.is_missing_file:
        sentence = "nothing is stored yet: the file does not exist"
        return [Remark(Subject.LAYOUT, Level.FAIL, sentence, database.location.creates_tables or _CREATES_TABLES)]
    if database.location.in_memory:
        sentence = "this is one process's memory: it ends with the process, and no other process sees what is stored"
        remedy = "Let saga_backend name a file, sqlite:////path/to/file, or a server"
        return [Remark(Subject.SAFETY, Level.WARN, sentence, remedy)]
    with database.connect() as connection:
        tables = _tables(connection, database.names) if database.name == "postgresql" else ()
        return [*_safety(connection, database), *tables, *_layout(connection, database)]


def _safety(connection: Connection, database: Database) -> Iterator[Remark]:
    try:
        for warning in CHECKS[database.name](connection, database.names):
            yield Remark(Subject.SAFETY, Level.WARN, warning.rstrip("."), "Change that setting of the server")
    except UnsafeBackend as exc:
        yield Remark(Subject.SAFETY, Level.FAIL, exc.problem, exc.remedy)
    except ConfigurationError as exc:
        yield Remark(Subject.SAFETY, Level.FAIL, f"workers do not start: {exc.problem}", exc.remedy)


def _layout(connection: Connection, database: Database) -> Iterator[Remark]:
    is_complete, stored = look_at(connection, database.names)
    refusal = refusal_of(stored, database) if stored else None
    if refusal is not None:
        yield Remark(Subject.LAYOUT, Level.FAIL, f"workers do not start: {refusal.problem}", refusal.remedy)
    elif stored is None or (stored == LAYOUT and not is_complete):
        sentence = f"nothing can be stored: the {database.names.shown} are missing"
        yield Remark(Subject.LAYOUT, Level.FAIL, sentence, database.location.creates_tables or _CREATES_TABLES)


def _tables(connection: Connection, names: Names) -> Iterator[Remark]:
    """Yield what PostgreSQL's statistics say; of small tables, nothing."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    for table in map(names.table, metadata.sorted_tables):
        path = ".".join(map(quote, filter(None, (table.schema, table.name))))
        row = connection.execute(_STATISTICS, {"path": path}).first()
        if row is not None:
            yield from statistics_of(path, tuple(row), has_updates=table.name == names.of(instance.name))


def statistics_of(table: str, counts: Sequence[int], *, has_updates: bool) -> Iterator[Remark]:
    """Yield what follows from PostgreSQL's statistics of a table.

    Args:
        table: Its name, as a statement has it.
        counts: How many rows were updated, and of them without touching an index, how many are live, how many dead.
        has_updates: Whether its updates touch no index if all is well.
    """
    updated, hot, live, dead = counts
    if has_updates and updated >= _MANY and hot / updated < _LEAST_HOT:
        share = f"only {hot / updated:.0%} of the updates of {table} touch no index (HOT)"
        remedy = f"Leave room in its pages, ALTER TABLE {table} SET (fillfactor = 70), and {_OLD_TRANSACTIONS}"
        yield Remark(Subject.TABLES, Level.WARN, f"{share}: commits write more, and the table grows", remedy)
    if dead >= _MANY and dead / (live + dead) > _MOST_DEAD:
        sentence = f"{dead / (live + dead):.0%} of the rows of {table} are dead: every look at it reads them, too"
        remedy = (
            f"Have it vacuumed sooner, ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.02), and {_OLD_TRANSACTIONS}"
        )
        yield Remark(Subject.TABLES, Level.WARN, sentence, remedy)
