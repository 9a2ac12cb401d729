"""The audit in SQL."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BindParameter, ColumnElement, Integer, Select, bindparam, or_, select

from celery_sagas.stores.audit import LOOKED_AT, Audit, AuditPage, AuditPlace, place_behind
from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound, numbered, one_of
from celery_sagas.stores.sql.purges import purge
from celery_sagas.stores.sql.tables import audit, audit_index, has_time

_INDEX: Final = str(audit_index.name)
#: Before every entry.
_FIRST: Final = AuditPlace(2**62, "")
_SKIPPED: BindParameter[int] = bindparam("skipped", type_=Integer())
_ENTRY: Final = [audit.c[name] for name in AuditEntry._fields]
_PLACE: Final = [audit.c[name] for name in AuditPlace._fields]


class SqlAudit(Audit):
    """Entries in the table ``saga_audit``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), key: str | None = None) -> AuditPage:
        place = place_behind(after, names, key) or _FIRST
        end = self._end(place, LOOKED_AT * limit) if names and key is None else None
        values = {**_values("", place), **numbered("saga", names), "limit": limit + 1}
        if key is not None:
            rows = self._database.fetch(_of_key, (len(names),), {**values, "key": key})
        else:
            shape, last = (self._index, len(names), end is not None), _values("end_", end) if end else {}
            rows = self._database.fetch(_recent, shape, values | last)
        entries = [AuditEntry(*row) for row in rows]
        behind = AuditPlace.of(entries[limit - 1]) if len(entries) > limit else end
        return AuditPage(tuple(entries[:limit]), str(behind) if behind else "")

    def purge(self, older_than_ms: int, limit: int) -> int:
        return purge(self._database, audit.c.at, older_than_ms, limit)

    def _end(self, place: AuditPlace, count: int) -> AuditPlace | None:
        """Return the place of the last of so many entries behind a place; ``None`` if there are fewer."""
        values = {**_values("", place), "limit": 1, "skipped": count - 1}
        rows = self._database.fetch(_end, (self._index,), values)
        return AuditPlace(*rows[0]) if rows else None

    @property
    def _index(self) -> str:
        return self._database.names.of(_INDEX)


def _values(prefix: str, place: AuditPlace) -> dict[str, object]:
    return {f"{prefix}{name}": value for name, value in place._asdict().items()}


def _of_key(names: int) -> Select[Any]:
    """Select the entries of a key behind a place."""
    is_of_key = [one_of(audit.c.saga, "saga", names), audit.c.key == bound(audit.c.key, "key")]
    return _behind(_ENTRY).where(*is_of_key).limit(LIMIT)


def _recent(index: str, names: int, has_end: bool) -> Select[Any]:
    """Select the entries behind a place, perhaps up to an end, or those of them that are of some sagas."""
    is_of_saga = [one_of(audit.c.saga, "saga", names)] if names else []
    return _in_order(index, _ENTRY).where(*is_of_saga, *(_is_within() if has_end else ())).limit(LIMIT)


def _end(index: str) -> Select[Any]:
    return _in_order(index, _PLACE).limit(LIMIT).offset(_SKIPPED)


def _in_order(index: str, columns: Sequence[Any]) -> Select[Any]:
    """Select behind a place in the order of the index by time, which MariaDB would not take, but sort, unless it is told to."""
    return _behind(columns).where(has_time(audit.c.at)).with_hint(audit, f"FORCE INDEX ({index})", "mysql")


def _behind(columns: Sequence[Any]) -> Select[Any]:
    """Select behind a place; where an index is entered must be a condition of its own."""
    at, id = audit.c.at, audit.c.id
    last_at, last_id = bound(at, "at"), bound(id, "id")
    rows = select(*columns).where(audit.c.prefix == PREFIX, at <= last_at, or_(at < last_at, id < last_id))
    return rows.order_by(at.desc(), id.desc())


def _is_within() -> list[ColumnElement[bool]]:
    """Return the conditions of what does not follow the end."""
    at, id = audit.c.at, audit.c.id
    end_at, end_id = bound(at, "end_at"), bound(id, "end_id")
    return [at >= end_at, or_(at > end_at, id >= end_id)]
