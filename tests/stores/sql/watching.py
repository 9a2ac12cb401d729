"""Watching a backend's statements, and losing their answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import event

from celery_sagas.stores.sql.backend import SqlBackend
from celery_sagas.stores.sql.connection.database import _StaleConnection


@contextmanager
def observed(backend: SqlBackend) -> Iterator[list[str]]:
    """Collect the first word of each statement."""
    statements: list[str] = []
    backend.database.observers.append(lambda sql: statements.append(sql.split()[0]))
    yield statements
    backend.database.observers.pop()


class OpenConnections:
    """Counts the connections of a backend that are open, of which the idle ones are there at first."""

    def __init__(self, sql: SqlBackend) -> None:
        self.count = sql.database.connections.idle
        event.listen(sql.database.engine, "connect", self._note_opened)
        event.listen(sql.database.engine, "close", self._note_closed)

    def _note_opened(self, *_: object) -> None:
        self.count += 1

    def _note_closed(self, *_: object) -> None:
        self.count -= 1


def losing_first_reply(attempt: Callable[..., object]) -> Callable[..., object]:
    """Have the connection break when the first run of an operation is over."""

    def lose(work: object, *, may_repeat: bool) -> object:
        result = attempt(work, may_repeat=may_repeat)
        if may_repeat:
            raise _StaleConnection
        return result

    return lose


def explained(sql: SqlBackend, text: str, values: dict[str, object], *, in_transaction: bool = True) -> str:
    """Return how the database would run a statement, in a transaction as the product begins it or alone."""
    opened = sql.database.connections.open()
    try:
        if in_transaction:
            opened.cursor.execute(sql.database.dialect.begin)
        opened.cursor.execute(("EXPLAIN QUERY PLAN " if sql.database.name == "sqlite" else "EXPLAIN ") + text, values)
        plan = str(opened.cursor.fetchall())
        if in_transaction:
            opened.cursor.execute("ROLLBACK")
        return plan
    finally:
        opened.close()
