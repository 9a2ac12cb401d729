"""The engine, its connections, and the statements that were compiled for it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import Connection
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError

from celery_sagas.errors import LeaseLost, NotBuffered, StoreError, StoreUnavailable
from celery_sagas.forks import FILES, ForkGate
from celery_sagas.stores.sql.connection.connections import Connections, SqlConnection
from celery_sagas.stores.sql.connection.dialects import DIALECTS
from celery_sagas.stores.sql.connection.errors import Fault, SqlErrors
from celery_sagas.stores.sql.connection.location import SqlLocation
from celery_sagas.stores.sql.connection.names import read_names
from celery_sagas.stores.sql.connection.options import make_engine, read_options
from celery_sagas.stores.sql.connection.statements import Build, Execution, Shape, Statement, Values, compile_statement, in_parts

Row: TypeAlias = Sequence[Any]


class SqlSession:
    """Runs statements, each as a transaction of its own unless one is begun."""

    def __init__(self, database: Database, cursor: DBAPICursor) -> None:
        self._database = database
        self._cursor = cursor
        self._is_open = False
        self._sent: tuple[str, Sequence[dict[str, object]]] = ("", ())

    def fetch(self, build: Build, shape: Shape, values: Values) -> list[Row]:
        """Run a statement and return its rows."""
        rows = self._run(build, shape, values).fetchall()
        return list(map(_decoded, rows)) if self._database.name == "mysql" else list(rows)

    def change(self, build: Build, shape: Shape, values: Values) -> int:
        """Run a statement and return how many rows it changed."""
        return self._run(build, shape, values).rowcount

    def fetch_any(self, build: Build, name: str, values: Sequence[object], common: Values = MappingProxyType({})) -> list[Row]:
        """Run a statement with any number of values, with which ``any_of`` compares, and return its rows."""
        parts = in_parts(self._database.name, name, values)
        return [row for count, given in parts for row in self.fetch(build, (count,), {**common, **given})]

    def change_any(self, build: Build, name: str, values: Sequence[object], common: Values = MappingProxyType({})) -> int:
        """Run a statement with any number of values, with which ``any_of`` compares; return how many rows it changed."""
        parts = in_parts(self._database.name, name, values)
        return sum(self.change(build, (count,), {**common, **given}) for count, given in parts)

    def change_each(self, build: Build, shape: Shape, rows: Sequence[Values]) -> None:
        """Run a statement with each of several rows: on SQLite without a trip, on MySQL as one ``INSERT`` of them all."""
        statement = self._database.statement(build, shape)
        self._database.observe(statement.text)
        self._sent = statement.text, [statement.bind(row) for row in rows]
        self._cursor.executemany(*self._sent)

    def change_all(self, steps: Sequence[Execution]) -> int:
        """Run steps, all or none.

        Returns:
            How many rows they changed; 0, with nothing written, if a required step changed none.
        """
        if len(steps) == 1:
            return self.change(steps[0].build, steps[0].shape, steps[0].values)
        self.begin()
        changed = 0
        for step in steps:
            rows = self.change(step.build, step.shape, step.values)
            if step.is_required and not rows:
                self.end("ROLLBACK")
                return 0
            changed += rows
        self.end("COMMIT")
        return changed

    def measure(self) -> int:
        """Return how large the last statement was, as PyMySQL has sent it: with its values. Bytes."""
        (text, rows), cursor = self._sent, cast(Any, self._cursor)
        return 1 + max((len(cursor.mogrify(text, row).encode()) for row in rows), default=len(text))  # 1: the command

    def begin(self, text: str = "") -> None:
        """Begin a transaction, as the database's dialect does or with another text."""
        self._is_open = True
        self.execute(text or self._database.dialect.begin)

    def end(self, how: str) -> None:
        """End the transaction with ``COMMIT`` or ``ROLLBACK``."""
        self.execute(how)
        self._is_open = False

    def recover(self) -> bool:
        """Undo what an error left open (MySQL keeps it, to be committed with what comes next); return whether that worked."""
        if not self._is_open:
            return True
        try:
            self.end("ROLLBACK")
        except self._database.driver.Error:
            return False
        return True

    @property
    def database(self) -> str:
        """The kind of the database."""
        return self._database.name

    @property
    def prefix(self) -> str:
        """The prefix, which partitions the tables."""
        return self._database.prefix

    def _run(self, build: Build, shape: Shape, values: Values) -> DBAPICursor:
        statement = self._database.statement(build, shape)
        return self.execute(statement.text, statement.bind(values))

    def execute(self, text: str, *parameters: dict[str, object]) -> DBAPICursor:
        """Run the text of a statement."""
        self._database.observe(text)
        self._sent = text, parameters
        self._cursor.execute(text, *parameters)
        return self._cursor


def _decoded(row: Row) -> Row:
    """Return a row as text: MySQL returns what is compared byte by byte as bytes."""
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row)


T = TypeVar("T")


#: How often a transaction is repeated that the database has undone in favor of another.
_REPEATS = 2
#: Bytes of a statement that every server takes which has its default limit, or a larger one.
_SMALL = 1_000_000


class _StaleConnection(Exception):
    """Raised inside this module when a connection that had worked before turns out to be lost."""


class StatementRunner(ABC):
    """What a store needs of a database: each of its operations runs over one connection."""

    name: str  #: of the kind of database
    prefix: str  #: partitions the tables

    @abstractmethod
    def run(self, work: Callable[[SqlSession], T]) -> T:
        """Run one operation on a connection."""

    @abstractmethod
    def in_transaction(self, work: Callable[[SqlSession], T]) -> T:
        """Run work in a transaction, which is undone if it raises."""

    @abstractmethod
    def fault_of(self, error: StoreError) -> Fault | None:
        """Return the meaning of the driver's error for which an operation failed, if there was one."""

    def fetch(self, build: Build, shape: Shape, values: Values) -> list[Row]:
        """Run one statement and return its rows."""
        return self.run(lambda session: session.fetch(build, shape, values))

    def change(self, build: Build, shape: Shape, values: Values) -> int:
        """Run one statement and return how many rows it changed."""
        return self.run(lambda session: session.change(build, shape, values))


class Database(StatementRunner):
    """A database, as one process sees it.

    Args:
        location: Where it is.
        prefix: Partitions every table.
        options: ``saga_backend_options``.
        clock: Overrides the server's clock.
    """

    def __init__(
        self, location: SqlLocation, prefix: str, options: Mapping[str, object], clock: Callable[[], int] | None
    ) -> None:
        self.location = location
        self.name = location.url.get_backend_name()
        self.dialect = DIALECTS[self.name]
        self.options = read_options(options, location)
        self.names = read_names(self.options, self.name)  #: of the tables
        self.engine = make_engine(location, self.dialect, self.options)
        self.connections = Connections(self.engine, self.options["pool_recycle"])
        self.driver = self.engine.dialect.loaded_dbapi
        #: Called with the text of each statement before it is run, ``BEGIN``, ``COMMIT`` and ``ROLLBACK`` included.
        self.observers: list[Callable[[str], None]] = []
        self.prefix = prefix
        #: Returns milliseconds since the epoch; ``None``: the server's clock is read in each statement.
        self.clock = clock if clock is not None or self.dialect.has_clock else _wall_clock
        self.errors = SqlErrors(location, self.names, self.driver)  #: translates those of the driver
        self._statements: dict[tuple[Build, Shape], Statement] = {}
        #: Each operation runs in it.
        self.gate: AbstractContextManager[object] = nullcontext()
        if location.in_memory:
            self.gate = RLock()  # the connection is the database: threads take turns
        elif self.name == "sqlite":
            FILES.close_before_forks(self.connections)
            self.gate = FILES

    def statement(self, build: Build, shape: Shape) -> Statement:
        """Return a compiled statement; shapes are few, so that each is compiled once."""
        statement = self._statements.get((build, shape))
        if statement is None:
            dialect, clock = self.engine.dialect, self.clock
            statement = compile_statement(build, shape, dialect, prefix=self.prefix, clock=clock, names=self.names)
            self._statements[build, shape] = statement
        return statement

    def run(self, work: Callable[[SqlSession], T]) -> T:
        """Run one operation on a connection.

        An operation whose connection was lost since the last one (the server was restarted) is run once more, on a new
        connection. It may have been committed the first time: an operation that writes must be able to detect that.
        """
        with self.gate, self.errors.translated():
            try:
                return self._attempt(work, may_repeat=True)
            except _StaleConnection:
                self.connections.close_idle()  # the others are as old, but for those that come back now
            return self._attempt(work, may_repeat=False)

    def in_transaction(self, work: Callable[[SqlSession], T]) -> T:
        """Run work in a transaction, which is undone if it raises; the victim of a deadlock is run again."""
        for _ in range(_REPEATS):
            try:
                return self._run_in_transaction(work)
            except StoreUnavailable as exc:
                if self.fault_of(exc) is not Fault.LOCKED:
                    raise
        return self._run_in_transaction(work)

    def _run_in_transaction(self, work: Callable[[SqlSession], T]) -> T:
        """Run work in a transaction, which is run once more if the connection was lost.

        If the first run may have been committed, and the second finds nothing to do, the first one's answer is returned.
        """
        answers: list[T] = []

        def attempt(session: SqlSession) -> T | LeaseLost | NotBuffered:
            session.begin()
            try:
                answer = work(session)
            except (LeaseLost, NotBuffered) as exc:
                session.end("ROLLBACK")
                return answers[0] if answers else exc
            answers[:] = [answer]
            session.end("COMMIT")
            return answer

        answer = self.run(attempt)
        if isinstance(answer, LeaseLost | NotBuffered):
            raise answer
        return answer

    def _attempt(self, work: Callable[[SqlSession], T], *, may_repeat: bool) -> T:
        opened = (self.connections.check_out() if may_repeat else None) or self.connections.open()
        is_sound, began = False, time.monotonic()
        try:
            session = SqlSession(self, opened.cursor)
            result = work(session)
            is_sound = opened.has_worked = True
        except self.driver.Error as exc:
            is_lost = self.engine.dialect.is_disconnect(exc, opened.driver_connection, None)
            if is_lost or self.errors.fault_of(exc) is Fault.REFUSED:
                self._check_size(session, exc)
            was_stale = opened.has_worked and time.monotonic() - began < self.options["answer_timeout"]  # not a silent server
            if is_lost and may_repeat and was_stale:
                raise _StaleConnection from exc
            is_sound = not is_lost and session.recover()
            raise
        else:
            return result
        finally:
            self._check_in(opened, is_sound)

    def _check_size(self, session: SqlSession, error: Exception) -> None:
        """Check whether a statement failed because the server refuses its size: it would fail each time.

        Raises:
            StoreError: The statement is too large; nothing was stored.
        """
        if not self.dialect.statement_limit or (size := session.measure()) < _SMALL:
            return
        try:
            with self.engine.connect() as connection:
                limit = int(connection.exec_driver_sql(self.dialect.statement_limit).scalar_one())
        except DBAPIError:
            return  # the server is away
        if size >= limit:
            raise StoreError(
                f"The saga backend {self.location.shown} takes statements of less than {limit:,} bytes, and this one has "
                f"{size:,}. Nothing was stored. Raise max_allowed_packet on the server, or store and send less at once."
            ) from error

    def _check_in(self, opened: SqlConnection, is_sound: bool) -> None:
        if not is_sound and self.name == "sqlite":  # closing it ends no transaction that a cursor still refers to
            opened.connection.rollback()
        if is_sound or self.location.in_memory:  # the connection is the database, and no conversation to get out of step
            self.connections.check_in(opened)
        else:
            opened.close()

    def fault_of(self, error: StoreError) -> Fault | None:
        """Return the meaning of the driver's error for which an operation failed, if there was one."""
        return self.errors.fault_of(error.__cause__) if isinstance(error.__cause__, Exception) else None

    def held(self) -> AbstractContextManager[object]:
        """Return what must last as long as a transaction for the user does: no file may be open while a process forks."""
        return self.gate.held() if isinstance(self.gate, ForkGate) else nullcontext()

    def observe(self, text: str) -> None:
        """Tell the observers of a statement that is about to run."""
        for observer in self.observers:
            observer(text)

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """Open a connection for what is done once, through SQLAlchemy's own interface."""
        with self.gate, self.errors.translated(), self.engine.connect() as connection:
            yield connection

    def close(self) -> None:
        """Close every connection."""
        with self.gate:
            self.connections.close()
            self.engine.dispose()


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000
