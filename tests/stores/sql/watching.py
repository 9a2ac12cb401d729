"""Watching a backend's statements, and losing their answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.database import _StaleConnection


@contextmanager
def observed(backend: SqlBackend) -> Iterator[list[str]]:
    """Collect the first word of each statement."""
    statements: list[str] = []
    backend.database.observers.append(lambda sql: statements.append(sql.split()[0]))
    yield statements
    backend.database.observers.pop()


def losing_first_reply(attempt: Callable[..., object]) -> Callable[..., object]:
    """Have the connection break when the first run of an operation is over."""

    def lose(work: object, *, may_repeat: bool) -> object:
        result = attempt(work, may_repeat=may_repeat)
        if may_repeat:
            raise _StaleConnection
        return result

    return lose


def explained(sql: SqlBackend, text: str, values: dict[str, object]) -> str:
    """Return how the database would run a statement.

    PostgreSQL reads a table as a whole that is small: here only where there is no other way.
    """
    opened = sql.database.connections.borrow()
    try:
        if sql.database.name == "postgresql":
            opened.cursor.execute("SET enable_seqscan = off")
        opened.cursor.execute(("EXPLAIN QUERY PLAN " if sql.database.name == "sqlite" else "EXPLAIN ") + text, values)
        return str(opened.cursor.fetchall())
    finally:
        sql.database.connections.give_back(opened)
