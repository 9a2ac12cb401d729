"""The engine, its connections, and the statements that were compiled for it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Pool
from sqlalchemy.pool import PoolProxiedConnection

from celery_sagas.errors import StoreError
from celery_sagas.stores.sql.dialects import DIALECTS
from celery_sagas.stores.sql.errors import Subject, Translator
from celery_sagas.stores.sql.location import Location
from celery_sagas.stores.sql.options import make_engine, read_options
from celery_sagas.stores.sql.session import Row, Session
from celery_sagas.stores.sql.statements import Build, Shape, Statement, Values, compile_statement

T = TypeVar("T")


class _StaleConnection(Exception):
    """Raised inside this module when a connection that had worked before turns out to be lost."""


class Database:
    """A database, as one process sees it.

    Args:
        location: Where it is.
        prefix: Partitions every table.
        options: ``saga_backend_options``.
        clock: Overrides the server's clock.
    """

    def __init__(self, location: Location, prefix: str, options: Mapping[str, object], clock: Callable[[], int] | None) -> None:
        self.location = location
        self.name = location.url.get_backend_name()
        self.dialect = DIALECTS[self.name]
        self.engine = make_engine(location, self.dialect, read_options(options, location))
        self.driver = self.engine.dialect.loaded_dbapi
        #: Called with the text of each statement before it is run, ``BEGIN``, ``COMMIT`` and ``ROLLBACK`` included.
        self.observers: list[Callable[[str], None]] = []
        self._prefix = prefix
        self._clock = clock if clock is not None or self.dialect.has_clock else _wall_clock
        self._errors = Translator(self.driver, location)
        self._statements: dict[tuple[Build, Shape], Statement] = {}
        if self.name == "sqlite" and not location.in_memory:
            _files.add(self)

    def statement(self, build: Build, shape: Shape) -> Statement:
        """Return a compiled statement; shapes are few, so that each is compiled once."""
        statement = self._statements.get((build, shape))
        if statement is None:
            statement = compile_statement(build(*shape), self.engine.dialect, self._prefix, self._clock)
            self._statements[build, shape] = statement
        return statement

    def fetch(self, build: Build, shape: Shape, values: Values) -> list[Row]:
        """Run one statement and return its rows."""
        return self.run(lambda session: session.fetch(build, shape, values))

    def change(self, build: Build, shape: Shape, values: Values) -> int:
        """Run one statement and return how many rows it changed."""
        return self.run(lambda session: session.change(build, shape, values))

    def run(self, work: Callable[[Session], T], subject: Subject | None = None) -> T:
        """Run one operation on a connection.

        An operation whose pooled connection was lost (the server was restarted) is run once more, on a new connection. It may
        have been committed the first time: whoever writes must be able to tell.

        Args:
            work: The operation.
            subject: What a commit is about.
        """
        pool, is_over = self.engine.pool, False
        try:
            with self._errors.translated(subject):
                result = self._run(work, pool)
            is_over = True
        except StoreError:
            is_over = True
            raise
        else:
            return result
        finally:
            if not is_over and not self.location.in_memory:
                # A time limit struck, perhaps inside the pool, which would miss a connection ever after.
                self._drop(pool)

    def _run(self, work: Callable[[Session], T], pool: Pool) -> T:
        try:
            return self._attempt(work, may_repeat=True)
        except _StaleConnection:
            self._drop(pool)
        return self._attempt(work, may_repeat=False)

    def _attempt(self, work: Callable[[Session], T], *, may_repeat: bool) -> T:
        connection = self.engine.raw_connection()
        is_sound = False
        try:
            session = Session(self, connection)
            result = work(session)
            is_sound = True
        except self.driver.Error as exc:
            is_lost = self._is_lost(connection, exc)
            if is_lost and may_repeat and "has_worked" in connection.info:
                raise _StaleConnection from exc
            is_sound = not is_lost and session.recover()
            raise
        else:
            connection.info["has_worked"] = True
            return result
        finally:
            self._give_back(connection, is_sound)

    def _is_lost(self, connection: PoolProxiedConnection, error: Any) -> bool:
        driver_connection: Any = connection.dbapi_connection
        return self.engine.dialect.is_disconnect(error, driver_connection, None)

    def _give_back(self, connection: PoolProxiedConnection, is_sound: bool) -> None:
        """Return the connection to the pool, or close it: who knows what it would answer to the next statement."""
        if not is_sound and self.name == "sqlite":  # closing it ends no transaction that a cursor still refers to
            connection.rollback()
        if is_sound or self.location.in_memory:  # the connection is the database, and no conversation to get out of step
            connection.close()
        else:
            connection.invalidate()

    def _drop(self, pool: Pool) -> None:
        """Leave a pool behind, unless another thread has done so."""
        if self.engine.pool is pool:
            self.engine.dispose()

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Open a connection for what is done once, through SQLAlchemy's own interface."""
        with self._errors.translated(), self.engine.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


def _close_files() -> None:
    """Close the idle connections to SQLite's files before this process forks.

    SQLite keeps in memory which locks the process holds. A child that inherits this believes to hold them too, although they
    are the parent's alone, and the children overwrite one another's commits, without any error.
    """
    for database in list(_files):
        database.engine.dispose()


_files: WeakSet[Database] = WeakSet()
os.register_at_fork(before=_close_files)
