"""Reads with a time limit for each statement: a slow page holds neither whoever asked for it nor the database."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from typing import Any, Final, TypeVar, cast

from sqlalchemy.engine.interfaces import DBAPICursor

from celery_sagas.errors import StoreUnavailable
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.errors import Fault

T = TypeVar("T")

#: How many instructions SQLite runs between two looks at the clock: about a millisecond's.
_INSTRUCTIONS: Final = 10_000


def read(database: Database, work: Callable[[SqlSession], T], seconds: float) -> T:
    """Run one operation that only reads, none of whose statements may take longer than this.

    MySQL ends what runs, and not a wait for a table that another has locked: ``answer_timeout`` does. In a transaction of
    Django's on PostgreSQL there is no limit: it would be that of all its later statements.

    Raises:
        StoreUnavailable: One took longer; the connection stays in use.
    """
    try:
        return database.run(lambda session: _ReadingSession(session, seconds).run(work))
    except StoreUnavailable as exc:
        if database.fault_of(exc) not in (Fault.LOCKED, Fault.CANCELED):
            raise
        cause = exc.__cause__
        problem = (
            f"a look at the instances may take {seconds:g} s, so that it holds nothing up, and was ended "
            f"({database.errors.text_of(cause) if cause else exc}). "
            "See which other statements lock the tables or load the server, and try again"
        )
        raise StoreUnavailable(database.location.shown, problem) from cause


class _ReadingSession(SqlSession):
    """Runs statements on the cursor of another session, which recovers from their errors."""

    def __init__(self, session: SqlSession, seconds: float) -> None:
        super().__init__(session._database, session._cursor)
        self._session = session
        self._seconds = seconds

    def run(self, work: Callable[[SqlSession], T]) -> T:
        """Run work with the limit; statements of MariaDB and MySQL carry it themselves."""
        if self.database == "postgresql":
            return self._in_transaction(work)
        return self._watched(work) if self.database == "sqlite" else work(self)

    def _in_transaction(self, work: Callable[[SqlSession], T]) -> T:
        """Run work in a transaction, with which the limit ends: behind a pooler, others use the connection then."""
        limit = f"SET LOCAL statement_timeout = {ceil(self._seconds * 1000)}"
        self._session.begin(f"BEGIN ISOLATION LEVEL READ COMMITTED; {limit}")
        answer = work(self._session)
        self._session.end("COMMIT")
        return answer

    def _watched(self, work: Callable[[SqlSession], T]) -> T:
        """Run work, and have SQLite look at the clock."""
        connection, deadline = cast(Any, self._cursor).connection, time.monotonic() + self._seconds
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _INSTRUCTIONS)
        try:
            return work(self._session)
        finally:
            connection.set_progress_handler(None, 0)

    def execute(self, text: str, *parameters: dict[str, object]) -> DBAPICursor:
        """Run a statement of MariaDB or MySQL, with its limit."""
        return super().execute(limited(text, self._seconds), *parameters)


def limited(select: str, seconds: float) -> str:
    """Return the text of a ``SELECT`` with its limit: MySQL's is a hint, and MariaDB's a comment that it alone runs.

    In MariaDB another limit ends the wait for a locked table.
    """
    limits = f"/*M! SET STATEMENT max_statement_time = {seconds:g}, lock_wait_timeout = {ceil(seconds)} FOR */"
    return f"{limits} {select.replace('SELECT', f'SELECT /*+ MAX_EXECUTION_TIME({ceil(seconds * 1000)}) */', 1)}"
