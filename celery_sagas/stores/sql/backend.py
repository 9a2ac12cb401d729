"""The backend in SQL: its ports over one database."""

from collections.abc import Callable, Mapping, Sequence

from celery_sagas.errors import UnsafeBackend
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.sql.aggregators.aggregates import SqlAggregateStore
from celery_sagas.stores.sql.aggregators.buffers import SqlBuffers
from celery_sagas.stores.sql.apps import note_app
from celery_sagas.stores.sql.checks import CHECKS
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.location import locate
from celery_sagas.stores.sql.dead_letters import SqlDeadLetters
from celery_sagas.stores.sql.deliveries import SqlDeliveries
from celery_sagas.stores.sql.journal import SqlJournal
from celery_sagas.stores.sql.outbox import SqlOutbox
from celery_sagas.stores.sql.sagas.sagas import SqlSagaStore
from celery_sagas.stores.sql.schema import ddl, prepare_schema


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
        location = locate(url)
        self.url = location.shown
        self.database = Database(location, prefix, options or {}, clock)
        self.sagas = SqlSagaStore(self.database)
        self.outbox = SqlOutbox(self.database)
        self.journal = SqlJournal(self.database)
        self.deliveries = SqlDeliveries(self.database)
        self.dead = SqlDeadLetters(self.database)
        self.aggregates = SqlAggregateStore(self.database)
        self.buffers = SqlBuffers(self.database)

    def __repr__(self) -> str:
        return f"SqlBackend({self.url!r})"

    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        location = self.database.location
        with self.database.connect() as connection:
            warnings = CHECKS[self.database.name](connection)
            prepare_schema(connection, self.database.dialect, location, create=create_schema)
        if location.in_memory and processes > 1:
            raise UnsafeBackend(
                f"{self.url} is one process's memory, and the worker runs {processes} processes",
                "Let saga_backend name a file (sqlite:////path/to/file), or run the worker with --pool=threads or --pool=solo",
            )
        return warnings

    def note_app(self, name: str) -> str:
        return note_app(self.database, name)

    def schema(self) -> str:
        return ddl(self.database.location)

    def close(self) -> None:
        self.database.close()
