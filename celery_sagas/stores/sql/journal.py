"""The journal in SQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, select

from celery_sagas.stores.ports import Journal
from celery_sagas.stores.records import Entry
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound, numbered, one_of
from celery_sagas.stores.sql.purges import purge
from celery_sagas.stores.sql.sagas.lookups import ENTRY
from celery_sagas.stores.sql.tables import journal


class SqlJournal(Journal):
    """Entries in the table ``saga_journal``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def outcome_of(self, names: Sequence[str], key: str) -> Entry | None:
        rows = self._database.fetch(_completed, (len(names),), {"key": key, "limit": 1, **numbered("saga", names)})
        return Entry(*rows[0]) if rows else None

    def history(self, names: Sequence[str], key: str, limit: int) -> list[Entry]:
        rows = self._database.fetch(_newest, (len(names),), {"key": key, "limit": limit, **numbered("saga", names)})
        return [Entry(*row) for row in reversed(rows)]

    def purge(self, older_than_ms: int, limit: int) -> int:
        return purge(self._database, journal.c.at, older_than_ms, limit)


def _newest(names: int) -> Select[Any]:
    is_of_key = [journal.c.prefix == PREFIX, one_of(journal.c.saga, "saga", names), journal.c.key == bound(journal.c.key, "key")]
    return select(*ENTRY).where(*is_of_key).order_by(journal.c.at.desc(), journal.c.version.desc()).limit(LIMIT)


def _completed(names: int) -> Select[Any]:
    return _newest(names).where(journal.c.outcome == "completed")
