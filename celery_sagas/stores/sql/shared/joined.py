"""Stores that write in a transaction which others have begun: that of a function's own rows."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.engine.interfaces import DBAPICursor

from celery_sagas.errors import StoreError
from celery_sagas.stores.sql.aggregators.aggregates import SqlAggregateStore
from celery_sagas.stores.sql.connection.database import Database, Row, SqlSession, StatementRunner
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.statements import Build, Shape, Values
from celery_sagas.stores.sql.sagas.sagas import SqlSagaStore

T = TypeVar("T")


class JoinedSession(SqlSession):
    """Runs statements in a transaction that has begun, and is committed by others."""

    is_refused = False  #: whether what it was to write was not as expected, so that all must be undone

    def begin(self, text: str = "") -> None:
        """Do nothing: it has begun."""

    def end(self, how: str) -> None:
        """Note a rollback; leave the commit to the end of the whole."""
        self.is_refused = self.is_refused or how == "ROLLBACK"


class JoinedDatabase(StatementRunner):
    """A database as seen from one transaction.

    Args:
        database: The database.
        cursor: A cursor of the transaction's connection.
        undo: Rolls the transaction back.
    """

    def __init__(self, database: Database, cursor: DBAPICursor, undo: Callable[[], object]) -> None:
        self.name, self.prefix = database.name, database.prefix
        self.session = JoinedSession(database, cursor)
        self._outside = database
        self._undo = undo

    def run(self, work: Callable[[SqlSession], T]) -> T:
        """Run one operation, once: what was lost, or was the victim of a deadlock, begins again with the function."""
        with self._outside.errors.translated():
            return work(self.session)

    def in_transaction(self, work: Callable[[SqlSession], T]) -> T:
        """Run work, once: the last of the transaction, so that what it sets for itself concerns no statement of the function."""
        plan = self._outside.dialect.plan
        if plan:
            self.run(lambda session: session.execute(plan))
        return self.run(work)

    def fetch(self, build: Build, shape: Shape, values: Values) -> list[Row]:
        """Look up why a commit was refused: in a transaction of its own, once this one is undone."""
        self._undo()
        return self._outside.fetch(build, shape, values)

    def fault_of(self, error: StoreError) -> Fault | None:
        """Return the meaning of the driver's error for which an operation failed, if there was one."""
        return self._outside.fault_of(error)


class JoinedBackend:
    """The stores whose commits can share a transaction."""

    def __init__(self, database: JoinedDatabase) -> None:
        self.sagas = SqlSagaStore(database)
        self.aggregates = SqlAggregateStore(database)
