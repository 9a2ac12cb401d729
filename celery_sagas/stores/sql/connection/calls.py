"""One call of a port as one transaction."""

from collections.abc import Callable
from typing import TypeVar

from celery_sagas.errors import LeaseLost, NotBuffered, StoreUnavailable
from celery_sagas.stores.sql.connection.database import Database, SqlSession

T = TypeVar("T")

#: How often a call is repeated that the database has undone in favor of another.
_REPEATS = 2


def in_transaction(database: Database, work: Callable[[SqlSession], T]) -> T:
    """Run work in a transaction, which is undone if it raises; the victim of a deadlock is run again."""
    for _ in range(_REPEATS):
        try:
            return _run(database, work)
        except StoreUnavailable as exc:
            if not database.was_locked_out(exc):
                raise
    return _run(database, work)


def _run(database: Database, work: Callable[[SqlSession], T]) -> T:
    """Run work in a transaction, which the database runs once more if the connection was lost.

    If the first run may have been committed, and the second finds nothing to do, the first one's answer is returned.
    """
    answers: list[T] = []

    def run(session: SqlSession) -> T | LeaseLost | NotBuffered:
        session.begin()
        try:
            answer = work(session)
        except (LeaseLost, NotBuffered) as exc:
            session.end("ROLLBACK")
            return answers[0] if answers else exc
        answers[:] = [answer]
        session.end("COMMIT")
        return answer

    answer = database.run(run)
    if isinstance(answer, LeaseLost | NotBuffered):
        raise answer
    return answer
