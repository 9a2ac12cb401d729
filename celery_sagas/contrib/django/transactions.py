"""Transactions of Django's in which the library writes: those of callers, and those that it begins for a function."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, TypeVar

import django.db
from django.db import transaction

from celery_sagas.connections import OnFailure
from celery_sagas.contrib.django.addresses import connection_of
from celery_sagas.contrib.django.database import DjangoDatabase, origin_of
from celery_sagas.core.ids import time_ordered_id
from celery_sagas.errors import ConfigurationError, MisuseError, StoreError, StoreUnavailable
from celery_sagas.stores.records import Outgoing
from celery_sagas.stores.shared import SharedTransaction
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.options import ENDED
from celery_sagas.stores.sql.shared.callers import OutgoingInsert, is_aborted
from celery_sagas.stores.sql.shared.joined import JoinedBackend, JoinedDatabase
from celery_sagas.stores.sql.shared.transactions import SqlSharedTransactions

T = TypeVar("T")

logger = logging.getLogger("celery_sagas")

#: MySQL's numbers of the errors of a connection that is lost.
_LOST: Final = frozenset({2006, 2013, 2014, 2045, 2055, 4031})


class DjangoTransactions(SqlSharedTransactions):
    """Transactions in the database of an alias: of Django's, known by the alias, and of SQLAlchemy's."""

    _database: DjangoDatabase

    def __init__(self, database: DjangoDatabase) -> None:
        super().__init__(database)
        insert = OutgoingInsert(database)
        self._values = insert.values
        self._text = str(insert.statement.compile(dialect=database.engine.dialect))

    def add(self, using: object, rows: Sequence[Outgoing], then: Callable[[str], object]) -> None:
        if not isinstance(using, str):
            super().add(using, rows, then)
            return
        connection = self._connection_of(using)
        if not connection.in_atomic_block:
            problem = f"there is no transaction on the database {using!r}, with which a message could be sent"
            raise MisuseError(problem, "Call it inside transaction.atomic()")
        with self._database.ended_transactions_refused(connection), connection.cursor() as cursor:
            cause = _cause_of(connection, then)
            for row in rows:
                cursor.execute(self._text, self._values(row, cause))

    def check(self, kind: object) -> None:
        if not isinstance(kind, str):
            problem = f"transaction={getattr(kind, '__name__', kind)} is SQLAlchemy's, and the backend is Django's"
            raise ConfigurationError(problem, f"Give it the alias: transaction={self._database.alias!r}")
        self._connection_of(kind)

    def open(self, kind: object) -> SharedTransaction:
        self.check(kind)
        return _DjangoTransaction(self._database)

    def _connection_of(self, alias: str) -> Any:
        if alias != (ours := self._database.alias):
            problem = f"the transaction is one of the database {alias!r}, and the backend is {self._database.location.shown}"
            raise ConfigurationError(problem, f"Use {ours!r}, or let saga_backend, or saga_outbox_backend, be django://{alias}")
        return connection_of(alias)


class _Then:
    """Calls a function once a transaction of Django's has committed."""

    def __init__(self, then: Callable[[str], object]) -> None:
        self._then = then
        self.cause = time_ordered_id()

    def __call__(self) -> None:
        self._then(self.cause)


def _cause_of(connection: Any, then: Callable[[str], object]) -> str:
    """Return the cause of the rows of a transaction, and have a function called once it commits.

    Rows share what was registered earlier in the same savepoint, or around it: if they commit, it is called. In a ``TestCase``,
    where nothing commits, each has its own, for ``captureOnCommitCallbacks()``.
    """
    if not any(block._from_testcase for block in connection.atomic_blocks):
        for savepoints, called, *_ in connection.run_on_commit:
            if isinstance(called, _Then) and savepoints <= set(connection.savepoint_ids):
                return called.cause
    made = _Then(then)
    transaction.on_commit(made, using=connection.alias)  # what it raises is the caller's: a time limit, a step in eager mode
    return made.cause


class _DjangoTransaction(SharedTransaction):
    """An ``atomic()`` that has begun, in which a function uses its models."""

    handle = None

    def __init__(self, database: DjangoDatabase) -> None:
        self._database = database
        self._connection = connection_of(database.alias)
        self._is_outermost = not self._connection.in_atomic_block
        self._atomic = transaction.atomic(using=database.alias)
        self._loss: Exception | None = None  #: the driver's error with which it was lost, which the function may have caught
        self._is_committed = self._is_over = False
        with ExitStack() as opening, database.translated():
            opening.enter_context(database.held())
            self._begin()
            opening.enter_context(self._connection.execute_wrapper(self._note_loss))
            self._closing = opening.pop_all()
        if self._is_outermost:
            transaction.on_commit(self._note_commit, using=database.alias)

    def _begin(self) -> None:
        """Begin; on SQLite as one that writes: what has read first cannot wait for another writer."""
        connection = self._connection
        connection.ensure_connection()
        if self._database.name != "sqlite" or connection.transaction_mode:
            self._atomic.__enter__()
            return
        connection.transaction_mode = "IMMEDIATE"
        try:
            self._atomic.__enter__()
        finally:
            connection.transaction_mode = None

    def _note_loss(self, execute: Callable[..., Any], *arguments: Any) -> Any:
        """Run a statement of the function, and note an error with which the database has undone the whole transaction."""
        try:
            return execute(*arguments)
        except django.db.Error as exc:
            origin = origin_of(exc)
            if self._loss is None and (self._database.errors.undoes_all(origin) or self._is_lost(origin)):
                self._loss = origin
            raise

    def _is_lost(self, origin: Exception) -> bool:
        if self._database.name == "mysql":
            return bool(origin.args) and origin.args[0] in _LOST
        raw = self._connection.connection
        return bool(self._database.name == "postgresql" and (raw is None or raw.closed or raw.broken))

    def _note_commit(self) -> None:
        self._is_committed = True

    def flush(self) -> None:
        self._check_open()

    def _check_open(self) -> None:
        connection = self._connection
        if self._loss is not None:
            with self._database.errors.translated():
                raise self._loss
        if self._atomic not in connection.atomic_blocks or connection.closed_in_transaction:
            raise MisuseError(ENDED, "Leave commit(), rollback() and close() out; raise an error to undo it")
        if connection.needs_rollback:
            raise _ended_by_error()

    def commit(self, operation: Callable[[Any], T]) -> T:
        try:
            return self._commit(operation)
        except StoreError as exc:
            self._undo()
            if is_aborted(exc.__cause__):
                raise _ended_by_error() from exc
            raise

    def _commit(self, operation: Callable[[Any], T]) -> T:
        self._check_open()
        joined = JoinedDatabase(self._database, self._connection.connection.cursor(), self._undo)
        result = operation(JoinedBackend(joined))
        if joined.session.is_refused:
            raise StoreUnavailable(self._database.location.shown, "the transaction was undone")
        self._is_over = True
        self._database.observe("COMMIT")
        try:
            with OnFailure(self._abandon):
                self._atomic.__exit__(None, None, None)
        except django.db.IntegrityError:  # of a constraint of the user's, which is checked now
            raise
        except django.db.Error:
            if self._is_committed:
                self._log_hook()
                return result
            with self._database.translated():
                raise
        except Exception:
            if not self._is_committed:
                raise
            self._log_hook()
        return result

    def _log_hook(self) -> None:
        logger.exception("a function that was given to transaction.on_commit() has failed; the transaction has committed")

    def _undo(self) -> None:
        """Roll back what a commit that was refused has written."""
        if not self._is_over:
            self._leave()

    def close(self) -> None:
        if not self._is_over:
            self._abandon()
            self._leave()
        with suppress(django.db.Error):
            self._closing.close()

    def _abandon(self) -> None:
        """Close the connection of what has not committed: it may have been interrupted while it waited for a reply.

        After an interrupted ``COMMIT``, Django would take the next ``atomic()`` for a part of that transaction.
        """
        if self._is_outermost and not self._is_committed:
            with suppress(django.db.Error):
                self._connection.close()

    def _leave(self) -> None:
        """Leave ``atomic()`` as an error does."""
        self._is_over = True
        undone = _Undone()
        with suppress(django.db.Error):
            self._atomic.__exit__(_Undone, undone, None)

    def is_conflict(self, error: BaseException) -> bool:
        origin = self._loss or (origin_of(error) if isinstance(error, django.db.Error | StoreUnavailable) else None)
        return origin is not None and self._database.errors.fault_of(origin) is Fault.LOCKED

    def loss_of(self, error: BaseException) -> StoreUnavailable | None:
        loss = self._loss
        return None if loss is None else StoreUnavailable(self._database.location.shown, self._database.errors.text_of(loss))


def _ended_by_error() -> MisuseError:
    problem = "an error that the function has caught has ended the transaction"
    return MisuseError(problem, "Put what may fail into transaction.atomic()")


class _Undone(Exception):
    """Leaves ``atomic()``, so that it rolls back."""
