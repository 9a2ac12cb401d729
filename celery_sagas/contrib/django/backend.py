"""The backend ``django://alias``."""

from collections.abc import Callable, Mapping, Sequence

from celery_sagas.contrib.django.addresses import connection_of
from celery_sagas.contrib.django.database import DjangoDatabase
from celery_sagas.contrib.django.transactions import DjangoTransactions
from celery_sagas.errors import ConfigurationError, UnsafeBackend
from celery_sagas.stores.sql.backend import SqlBackend


class DjangoBackend(SqlBackend):
    """One backend in a database of Django's.

    Args:
        url: ``django://alias``.
        prefix: Partitions the tables.
        options: Those of an SQL backend.
        clock: Returns the time in milliseconds since the epoch; the server's if left out.
    """

    database: DjangoDatabase

    def __init__(
        self, url: str, *, prefix: str, options: Mapping[str, object] | None = None, clock: Callable[[], int] | None = None
    ) -> None:
        database = DjangoDatabase(url, prefix, options or {}, clock)
        self._open(database)
        self.shared = DjangoTransactions(database)

    def __repr__(self) -> str:
        return f"DjangoBackend({self.url!r})"

    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        if not self.database.location.in_memory:
            return super().prepare(create_schema=False, processes=processes)  # migrations do that
        if processes > 1:
            problem = f"{self.url} is one process's memory, and the worker runs {processes} processes"
            raise UnsafeBackend(problem, "Let DATABASES name a file, or a server")
        missing = self.database.names.of("saga_layout")
        if missing not in connection_of(self.database.alias).introspection.table_names():
            raise ConfigurationError(f"the saga tables are missing in {self.url}", self.database.location.creates_tables)
        return ()
