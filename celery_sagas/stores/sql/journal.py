"""The journal in SQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, BindParameter, Select, bindparam, or_, select

from celery_sagas.stores.ports import Journal
from celery_sagas.stores.records import BEGINNINGS, Entry
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound, now, numbered, one_of
from celery_sagas.stores.sql.purges import purge
from celery_sagas.stores.sql.sagas.lookups import ENTRY
from celery_sagas.stores.sql.tables import has_time, journal

_WITHIN: BindParameter[int] = bindparam("within", type_=BigInteger())


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

    def began(self, names: Sequence[str], within_ms: int, limit: int) -> list[str]:
        values = {"within": within_ms, "limit": limit, **numbered("saga", names)}
        return list(dict.fromkeys(key for (key,) in self._database.fetch(_began, (len(names),), values)))

    def purge(self, older_than_ms: int, limit: int) -> int:
        return purge(self._database, journal.c.at, older_than_ms, limit)


def _newest(names: int) -> Select[Any]:
    is_of_key = [journal.c.prefix == PREFIX, one_of(journal.c.saga, "saga", names), journal.c.key == bound(journal.c.key, "key")]
    return select(*ENTRY).where(*is_of_key).order_by(journal.c.at.desc(), journal.c.version.desc()).limit(LIMIT)


def _completed(names: int) -> Select[Any]:
    return _newest(names).where(journal.c.outcome == "completed")


def _began(names: int) -> Select[Any]:
    is_recent = [journal.c.prefix == PREFIX, journal.c.at >= now() - _WITHIN, has_time(journal.c.at)]
    is_first = [
        one_of(journal.c.saga, "saga", names),
        journal.c.version == 1,
        or_(*(journal.c.outcome == outcome for outcome in BEGINNINGS)),
    ]
    return select(journal.c.key).where(*is_recent, *is_first).order_by(journal.c.at.desc()).limit(LIMIT)
