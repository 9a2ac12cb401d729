"""A database of Django's: over connections of the library's own, or, inside ``atomic()``, over Django's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import current_thread
from typing import Any, TypeVar

import django.db
from celery import signals
from django.db import transaction

from celery_sagas.connections import BRIEF, OnFailure
from celery_sagas.contrib.django.addresses import alias_of, connection_of, locate
from celery_sagas.errors import ConfigurationError, MisuseError
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.errors import SqlErrors
from celery_sagas.stores.sql.shared.callers import is_aborted
from celery_sagas.stores.sql.shared.joined import JoinedSession

T = TypeVar("T")

#: Whether this process, or the one that has forked it, is a worker.
_is_worker = False


class DjangoDatabase(Database):
    """The database of an alias.

    What is called inside ``atomic()`` takes part in that transaction, as models do: it runs over Django's connection, in a
    savepoint. Outside of it, too, a process uses Django's connection, unless it is a worker: that has connections of its own,
    which stay open between two tasks.
    """

    def __init__(self, url: str, prefix: str, options: Mapping[str, object], clock: Callable[[], int] | None) -> None:
        self.alias = alias_of(url)
        super().__init__(locate(self.alias), prefix, options, clock)
        if self.names.schema and self.name == "mysql":
            problem = f"the option schema names the database {self.names.schema!r}, to which tests of Django's would write, too"
            raise ConfigurationError(problem, "Leave it out: Django's own tables and those of sagas are in one database")
        # Django may use mysqlclient, and the library uses PyMySQL
        self.errors = SqlErrors(self.location, self.names, self.driver, connection_of(self.alias).Database)

    def run(self, work: Callable[[SqlSession], T]) -> T:
        """Run one operation: on Django's connection, if that is in a transaction, be it one that is not of ``atomic()``."""
        connection = connection_of(self.alias)
        if connection.in_atomic_block or (connection.connection is not None and not connection.autocommit):
            return self._run_in_savepoint(connection, work)
        if _is_worker:
            return super().run(work)
        try:
            return self._run_alone(connection, work)
        finally:
            if current_thread().name.startswith(BRIEF):  # Django closes connections at the end of a request, in its thread
                connection.close()

    def _run_alone(self, connection: Any, work: Callable[[SqlSession], T]) -> T:
        """Run one operation over Django's connection, which is in autocommit."""
        with self.translated():
            connection.ensure_connection()
            session = SqlSession(self, connection.connection.cursor())
            with OnFailure(partial(self._recover, connection, session)):
                return work(session)

    def _recover(self, connection: Any, session: SqlSession) -> None:
        """Undo what an error left open; close a connection on which that fails, so that Django opens another one."""
        connection.errors_occurred = True
        try:
            is_sound = session.recover()
        except Exception:  # of the other driver
            is_sound = False
        if is_sound:
            connection.close_if_unusable_or_obsolete()
        else:
            connection.close()

    def _run_in_savepoint(self, connection: Any, work: Callable[[SqlSession], T]) -> T:
        """Run one operation in a transaction of Django's, so that an error of it ends nothing else."""
        with self.translated(), self.ended_transactions_refused(connection), transaction.atomic(using=self.alias):
            session = JoinedSession(self, connection.connection.cursor())
            answer = work(session)
            if session.is_refused:
                transaction.set_rollback(True, using=self.alias)
            return answer

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise every error of the driver, and every one of Django's that stands for one, as a ``StoreError``."""
        with self.errors.translated():
            try:
                yield
            except django.db.Error as exc:
                if exc.__cause__ is None:
                    raise
                raise origin_of(exc) from exc

    @contextmanager
    def ended_transactions_refused(self, connection: Any) -> Iterator[None]:
        """Report a transaction that can only be rolled back, whether Django knows that or PostgreSQL alone.

        Raises:
            MisuseError: An earlier error has ended the transaction.
        """
        problem = f"the transaction of the database {self.alias!r} of Django's was ended by an earlier error"
        error = MisuseError(problem, "Leave atomic() first; put what may fail into one of its own")
        if connection.needs_rollback:
            raise error
        try:
            yield
        except django.db.Error as exc:
            if not is_aborted(exc.__cause__):
                raise
            raise error from exc


def origin_of(error: BaseException) -> Exception:
    """Return the driver's error behind one of Django's, or of this library's."""
    cause = error.__cause__
    return cause if isinstance(cause, Exception) else Exception(str(error))


@signals.worker_init.connect
def _begin_work(**_: object) -> None:
    global _is_worker
    _is_worker = True


@signals.worker_shutdown.connect
def _end_work(**_: object) -> None:
    global _is_worker
    _is_worker = False
