"""Outgoing messages that no relay has taken, in SQL."""

from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Integer, Select, bindparam, case, or_, select
from sqlalchemy import literal_column as literal

from celery_sagas.stores.records import LOOK_MS, LOOKED_AT, OutboxGlance, OutboxPage, place_of
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound, now
from celery_sagas.stores.sql.tables import has_time, outbox

#: The index that MySQL is told to use, which may sort and lock all due rows if there are few. So a claim costs the same at any
#: number.
BY_TIME = "saga_outbox_available"
#: In the order of ``OutboxGlance``'s fields.
GLANCE: list[ColumnElement[Any]] = [outbox.c[name] for name in OutboxGlance._fields]
_ORDER = (outbox.c.available_at, outbox.c.id)
_SKIPPED: BindParameter[int] = bindparam("skipped", type_=Integer())


def overdue(database: Database, before: int, limit: int, after: str) -> OutboxPage:
    """Return a page of ``Outbox.overdue``: where it ends is read first, so that no row is left out that is added meanwhile."""
    at, _, id = after.partition(":")
    index, place = database.names.of(BY_TIME), {"after_at": int(at or 0), "after_id": id}
    ends = database.fetch(_end, (bool(after), index), {**place, "limit": 1, "skipped": LOOKED_AT - 1})
    values = {**place, **({"end_at": ends[0][0], "end_id": ends[0][1]} if ends else {}), "before": before, "limit": limit}
    rows = [OutboxGlance(*row) for row in database.fetch(_rows, (bool(after), bool(ends), index), values)]
    if len(rows) == limit:
        return OutboxPage(rows, rows[-1].due_place)
    return OutboxPage(rows, place_of(*ends[0]) if ends else "")


def forced(index: str) -> str:
    """Return the hint that has MySQL use an index."""
    return f"FORCE INDEX ({index})"


def _end(is_after: bool, by_time: str) -> Select[Any]:
    """Select the place of the last row that is looked at, if there are so many."""
    near = select(*_ORDER).where(*_near(is_after)).order_by(*_ORDER).offset(_SKIPPED).limit(LIMIT)
    return near.with_hint(outbox, forced(by_time), "mysql")


def _rows(is_after: bool, is_cut: bool, by_time: str) -> Select[Any]:
    """Select rows that were never tried, of those that may be claimed soon."""
    before: BindParameter[int] = bindparam("before", type_=BigInteger())
    due_at = case((outbox.c.due_at > literal("0"), outbox.c.due_at), else_=outbox.c.available_at)
    is_left = [*_near(is_after), outbox.c.tried_at == literal("0"), due_at <= before]
    if is_cut:
        at: BindParameter[int] = bindparam("end_at", type_=BigInteger())
        is_left += [outbox.c.available_at <= at, or_(outbox.c.available_at < at, outbox.c.id <= bound(outbox.c.id, "end_id"))]
    return select(*GLANCE).where(*is_left).order_by(*_ORDER).limit(LIMIT).with_hint(outbox, forced(by_time), "mysql")


def _near(is_after: bool) -> list[ColumnElement[bool]]:
    """Conditions: the row may be claimed soon, and stands behind a place."""
    soon = outbox.c.available_at <= now() + literal(str(LOOK_MS), BigInteger())
    is_near = [outbox.c.prefix == PREFIX, soon, has_time(outbox.c.available_at)]
    if is_after:
        at: BindParameter[int] = bindparam("after_at", type_=BigInteger())
        id = bound(outbox.c.id, "after_id")
        is_near += [outbox.c.available_at >= at, or_(outbox.c.available_at > at, outbox.c.id > id)]
    return is_near
