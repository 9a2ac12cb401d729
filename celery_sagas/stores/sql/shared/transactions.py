"""Shared transactions in SQL: those of callers, and those that are begun for a function."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, ExceptionContext, event
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session, SessionTransaction

from celery_sagas.errors import ConfigurationError, MisuseError, StoreError, StoreUnavailable
from celery_sagas.forks import FILES
from celery_sagas.stores.records import Outgoing
from celery_sagas.stores.shared import SharedTransaction, SharedTransactions
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.options import ENDED, ENDING, make_shared_engine
from celery_sagas.stores.sql.shared.callers import Callers, is_aborted
from celery_sagas.stores.sql.shared.joined import JoinedBackend, JoinedDatabase

T = TypeVar("T")


class SqlSharedTransactions(SharedTransactions):
    """Transactions that hold rows of the user's, in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._callers = Callers(database)
        #: The error with which the transaction of an open connection was lost, which the function may have caught.
        self._lost: dict[Connection, BaseException] = {}

    def add(self, using: object, rows: Sequence[Outgoing], then: Callable[[str], object]) -> None:
        self._callers.add(using, rows, then)

    def check(self, kind: object) -> None:
        shown = self._database.location.shown
        if isinstance(kind, str):
            problem = f"transaction={kind!r} is an alias of Django's, and the backend is {shown}"
            raise ConfigurationError(problem, f"Let the backend be django://{kind}")
        if self._database.location.in_memory:
            problem = f"{shown} is the memory of one connection, in which no other transaction can write"
            raise ConfigurationError(problem, "Let saga_backend name a file, or a server")
        if not (kind is Connection or (isinstance(kind, type) and issubclass(kind, Session))):
            raise ConfigurationError(f"transaction={kind!r} is no class of a session or a connection of SQLAlchemy's")

    def open(self, kind: object) -> SharedTransaction:
        self.check(kind)
        return _SqlTransaction(self._database, self._engine, kind, self._lost)

    @cached_property
    def _engine(self) -> Engine:
        """Opens the connections of functions: over the same driver, to which the library's statements are compiled."""
        engine = make_shared_engine(self._database.location, self._database.dialect, self._database.options)
        event.listen(engine, "handle_error", self._note_loss)
        if self._database.name == "sqlite":
            FILES.close_before_forks(self)
        return engine

    def _note_loss(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if context.connection is not None and (context.is_disconnect or self._database.errors.undoes_all(error)):
            self._lost.setdefault(context.connection, error)

    def close_idle(self) -> None:
        """Close every connection that is not in use."""
        if "_engine" in self.__dict__:
            self._engine.dispose()


class _SqlTransaction(SharedTransaction):
    """A transaction that has begun, and the session or the connection that a function is given."""

    def __init__(self, database: Database, engine: Engine, kind: Any, lost: dict[Connection, BaseException]) -> None:
        self._database = database
        self._lost = lost
        self._is_over = False
        with ExitStack() as opening:
            opening.enter_context(database.held())
            with database.errors.translated():
                self._connection = opening.enter_context(engine.connect())
                opening.callback(lost.pop, self._connection, None)
                self._transaction = self._connection.begin()
            self.handle = self._connection
            if kind is not Connection:  # whose commit commits nothing; a savepoint around it would cost a round trip
                self.handle = kind(bind=self._connection, join_transaction_mode="rollback_only")
                opening.callback(self.handle.close)
                if kind.get_bind is not Session.get_bind:
                    event.listen(self.handle, "after_begin", self._check_connection)
            self._closing = opening.pop_all()

    def _check_connection(self, session: Session, transaction: SessionTransaction, connection: Connection) -> None:
        """Refuse a connection that a session has chosen by itself: nobody would commit what it writes there.

        Raises:
            MisuseError: It is not that of the transaction.
        """
        if connection is not self._connection:
            problem = f"{type(session).__name__}.get_bind() has chosen another connection than that of the transaction"
            raise MisuseError(problem, "Have it return self.bind if that is set, or give transaction= SQLAlchemy's own Session")

    def flush(self) -> None:
        self._check_open()
        if isinstance(self.handle, Session):
            self.handle.flush()
            self._check_open()

    def _check_open(self) -> None:
        if (loss := self._lost.get(self._connection)) is not None:
            with self._database.errors.translated():
                raise loss
        if not self._transaction.is_active or self._is_undone():
            raise MisuseError(ENDED, "Leave commit() and rollback() out; raise an error to undo it")

    def _is_undone(self) -> bool:
        """Return whether SQLite has ended the transaction by itself, as it does with some errors, and commits each statement."""
        driver: Any = self._connection.connection.dbapi_connection if self._database.name == "sqlite" else None
        return driver is not None and not driver.in_transaction

    def commit(self, operation: Callable[[Any], T]) -> T:
        try:
            return self._commit(operation)
        except StoreError as exc:
            self._undo()
            if is_aborted(exc.__cause__):
                problem = "an error that the function has caught has ended the transaction"
                raise MisuseError(problem, "Put what may fail into begin_nested()") from exc
            raise

    def _commit(self, operation: Callable[[Any], T]) -> T:
        self._check_open()
        cursor: Any = self._connection.connection.cursor()
        joined = JoinedDatabase(self._database, cursor, self._undo)
        result = operation(JoinedBackend(joined))
        cursor.close()
        if joined.session.is_refused:
            raise StoreUnavailable(self._database.location.shown, "the transaction was undone")
        self._database.observe("COMMIT")
        try:
            self._end(self._transaction.commit)
        except IntegrityError:  # of a constraint of the user's, which is checked now
            raise
        except DBAPIError:
            with self._database.errors.translated():
                raise
        self._is_over = True
        return result

    def _undo(self) -> None:
        """Roll back what a commit that was refused has written."""
        if not self._is_over:
            if not self._transaction.is_active:  # its commit has failed, and nobody knows where it stands
                self._abandon()
                return
            self._is_over = True
            try:
                self._end(self._transaction.rollback)
            except SQLAlchemyError:  # the connection is lost, and with it the transaction
                self._connection.invalidate()

    def _end(self, end: Callable[[], None]) -> None:
        self._connection.info[ENDING] = True
        try:
            end()
        finally:
            self._connection.info.pop(ENDING, None)

    def close(self) -> None:
        if not self._is_over:
            self._abandon()
        with suppress(SQLAlchemyError):
            self._closing.close()

    def _abandon(self) -> None:
        """Close the connection: a function that has failed may have been interrupted while it waited for a reply.

        That would be read as the reply to another statement.
        """
        self._is_over = True
        with suppress(SQLAlchemyError, self._database.driver.Error):
            if self._database.name == "sqlite":  # closing it ends no transaction that a cursor still refers to
                self._connection.connection.rollback()
            self._connection.invalidate()

    def is_conflict(self, error: BaseException) -> bool:
        origin = error.orig if isinstance(error, DBAPIError) else error.__cause__ if isinstance(error, StoreUnavailable) else None
        origin = self._lost.get(self._connection, origin)  # the function may have raised another error for the one it has caught
        return isinstance(origin, Exception) and self._database.errors.fault_of(origin) is Fault.LOCKED

    def loss_of(self, error: BaseException) -> StoreUnavailable | None:
        loss = self._lost.get(self._connection)
        return None if loss is None else StoreUnavailable(self._database.location.shown, self._database.errors.text_of(loss))
