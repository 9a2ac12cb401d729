"""The journal in SQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Executable,
    Integer,
    Select,
    bindparam,
    delete,
    select,
    text,
    tuple_,
)

from celery_sagas.stores.ports import Journal
from celery_sagas.stores.records import Entry
from celery_sagas.stores.sql.database import Database
from celery_sagas.stores.sql.lookups import ENTRY
from celery_sagas.stores.sql.statements import PREFIX, bound, now, numbered, one_of
from celery_sagas.stores.sql.tables import HAS_AT, journal

_LIMIT: BindParameter[int] = bindparam("limit", type_=Integer())
_BEFORE: BindParameter[int] = bindparam("before", type_=BigInteger())


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
        ((time,),) = self._database.fetch(_time, (), {})
        values = {"before": time - older_than_ms, "limit": limit}
        return self._database.change(_purge, (self._database.name,), values)


def _newest(names: int) -> Select[Any]:
    is_of_key = [journal.c.prefix == PREFIX, one_of(journal.c.saga, "saga", names), journal.c.key == bound(journal.c.key, "key")]
    return select(*ENTRY).where(*is_of_key).order_by(journal.c.at.desc(), journal.c.version.desc()).limit(_LIMIT)


def _completed(names: int) -> Select[Any]:
    return _newest(names).where(journal.c.outcome == "completed")


def _time() -> Select[Any]:
    return select(now())


def _purge(database: str) -> Executable:
    """Remove the oldest entries."""
    if database == "mysql":
        return _MYSQL_PURGE
    handling: list[ColumnElement[Any]] = [journal.c.step, journal.c.message_id]
    old = select(*handling).where(journal.c.prefix == PREFIX, journal.c.at < _BEFORE, HAS_AT)
    oldest = old.order_by(journal.c.at, *handling).limit(_LIMIT).with_for_update(skip_locked=True)
    chosen = select(oldest.cte("oldest")) if database == "postgresql" else oldest  # which must not run it twice
    return delete(journal).where(journal.c.prefix == PREFIX, tuple_(*handling).in_(chosen))


#: MySQL has no ``LIMIT`` in a subquery on the table that it deletes from, but in ``DELETE`` itself; SQLAlchemy has not.
_MYSQL_PURGE = text(
    "DELETE FROM saga_journal WHERE prefix = :prefix AND at < :before ORDER BY at, step, message_id LIMIT :limit"
).bindparams(PREFIX, _BEFORE, _LIMIT)
