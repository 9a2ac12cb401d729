"""The backend in SQL: its ports over one database."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from celery_sagas.errors import ConfigurationError, StoreError, StoreUnavailable, UnsafeBackend
from celery_sagas.stores.health import Remark
from celery_sagas.stores.operations import Delete, Find, Insert, Update, Write
from celery_sagas.stores.ports import Backend, Operation
from celery_sagas.stores.sql.aggregators.aggregates import SqlAggregateStore
from celery_sagas.stores.sql.aggregators.buffers import SqlBuffers
from celery_sagas.stores.sql.apps import note_app
from celery_sagas.stores.sql.audit import SqlAudit
from celery_sagas.stores.sql.checks import CHECKS
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.location import locate
from celery_sagas.stores.sql.dead_letters import SqlDeadLetters
from celery_sagas.stores.sql.deliveries import SqlDeliveries
from celery_sagas.stores.sql.health import health_of
from celery_sagas.stores.sql.identity import identity_of
from celery_sagas.stores.sql.instances import SqlInstances
from celery_sagas.stores.sql.journal import SqlJournal
from celery_sagas.stores.sql.migration import migrate, migration
from celery_sagas.stores.sql.outbox import SqlOutbox
from celery_sagas.stores.sql.sagas.sagas import SqlSagaStore
from celery_sagas.stores.sql.schema import ddl, prepare_schema
from celery_sagas.stores.sql.shared.transactions import SqlSharedTransactions
from celery_sagas.stores.sql.switches import SqlSwitches

T = TypeVar("T", bound=Operation)


class SqlBackend(Backend):
    """One backend in PostgreSQL, MariaDB, MySQL or SQLite.

    Nothing is connected before the first operation. An engine does not survive a fork: each process opens its own backend.

    Args:
        url: An SQLAlchemy URL, with or without Celery's ``db+``.
        prefix: Partitions the tables.
        options: Those of ``celery_sagas.stores.sql.connection.options``.
        clock: Returns the time in milliseconds since the epoch; the server's if left out.
    """

    journal_retention_s = 7 * 86_400.0

    def __init__(
        self, url: str, *, prefix: str, options: Mapping[str, object] | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        self._open(Database(locate(url), prefix, options or {}, clock))

    def _open(self, database: Database) -> None:
        """Open the ports over a database."""
        self.url = database.location.shown
        self.database = database
        sagas = SqlSagaStore(self.database)
        self._find_together, self._commit_together = sagas.find_together, sagas.commit_together
        self.sagas = sagas
        self.outbox = SqlOutbox(self.database)
        self.journal = SqlJournal(self.database)
        self.deliveries = SqlDeliveries(self.database)
        self.dead = SqlDeadLetters(self.database)
        self.aggregates = SqlAggregateStore(self.database)
        self.buffers = SqlBuffers(self.database)
        self.instances = SqlInstances(self.database)
        self.audit = SqlAudit(self.database)
        self.switches = SqlSwitches(self.database)
        self.shared: SqlSharedTransactions = SqlSharedTransactions(self.database)

    def __repr__(self) -> str:
        return f"SqlBackend({self.url!r})"

    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        with self.database.connect() as connection:
            warnings = CHECKS[self.database.name](connection, self.database.names)
            prepare_schema(connection, self.database, create=create_schema)
        with suppress(ConfigurationError, StoreError):  # without it nothing is sent in transactions of users
            identity_of(self.database)
        if self.database.location.in_memory and processes > 1:
            raise UnsafeBackend(
                f"{self.url} is one process's memory, and the worker runs {processes} processes",
                "Let saga_backend name a file (sqlite:////path/to/file), or run the worker with --pool=threads or --pool=solo",
            )
        return warnings

    def health(self) -> Sequence[Remark]:
        return health_of(self.database)

    def many(self, operations: Sequence[Operation]) -> list[Any]:
        finds = {number: each for number, each in enumerate(operations) if isinstance(each, Find)}
        commits = {number: each for number, each in enumerate(operations) if isinstance(each, Insert | Update | Delete | Write)}
        others = {number: each for number, each in enumerate(operations) if number not in finds and number not in commits}
        answers = dict(zip(others, super().many(list(others.values())), strict=True))
        answers |= self._together(finds, self._find_together)
        answers |= self._together(commits, self._commit_together)
        return [answers[number] for number in range(len(operations))]

    def _together(self, operations: Mapping[int, T], perform: Callable[[Sequence[T]], Sequence[Any]]) -> dict[int, Any]:
        """Perform operations together; if that fails, or there is but one, one by one.

        A database that is away is waited for once: its error is the answer to all.
        """
        each = list(operations.values())
        if len(each) > 1:
            try:
                return dict(zip(operations, perform(each), strict=True))
            except StoreError as exc:  # whose error it is, each says alone
                if self._is_away(exc):
                    return dict.fromkeys(operations, exc)
        return dict(zip(operations, super().many(each), strict=True))

    def _is_away(self, error: StoreError) -> bool:
        return isinstance(error, StoreUnavailable) and self.database.fault_of(error) not in (Fault.LOCKED, Fault.UNIQUE)

    def note_app(self, name: str) -> str:
        return note_app(self.database, name)

    def migrate(self) -> Sequence[str]:
        return migrate(self.database)

    def migration(self) -> str:
        return migration(self.database.location, self.database.names)

    def schema(self) -> str:
        return ddl(self.database.location, self.database.names)

    def close(self) -> None:
        self.shared.close_idle()
        self.database.close()
