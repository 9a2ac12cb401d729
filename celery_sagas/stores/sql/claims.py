"""How due rows are leased, so that two claims at once never get the same row."""

from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Integer, Select, Update, bindparam, select, update

from celery_sagas.stores.sql.session import Row, Session
from celery_sagas.stores.sql.statements import PREFIX, Values, bound, chunks, now, numbered, one_of
from celery_sagas.stores.sql.tables import has_time, outbox

#: In MySQL's words: beside few rows it may sort all that is due, and lock it. So a claim costs the same beside any number.
_BY_TIME = "FORCE INDEX (saga_outbox_available)"
#: In the order of ``OutboxRow``'s fields.
_ROW: list[ColumnElement[Any]] = [
    outbox.c.id,
    outbox.c.kind,
    outbox.c.message_id,
    outbox.c.task,
    outbox.c.payload,
    outbox.c.due_at,
    outbox.c.attempts,
    outbox.c.instance_id,
    outbox.c.step,
    outbox.c.cause,
]


def claim_in_one(session: Session, values: Values, *, has_cause: bool) -> list[Row]:
    """Claim rows on PostgreSQL."""
    rows = session.fetch(_claim, (has_cause,), values)
    return [row[:-1] for row in sorted(rows, key=lambda row: (row[-1], row[0]))]


def _claim(has_cause: bool) -> Update:
    """Lease due rows. They are chosen in a part of their own, which PostgreSQL runs once, so that the limit holds."""
    due = _due(has_cause, outbox.c.id, outbox.c.available_at).cte("due")
    return (
        update(outbox)
        .where(outbox.c.prefix == PREFIX, outbox.c.id == due.c.id)
        .values(_lease())
        .returning(*_ROW, due.c.available_at)
    )


def claim_in_transaction(session: Session, values: Values, *, has_cause: bool) -> list[Row]:
    """Claim rows on databases whose ``UPDATE`` returns nothing."""
    session.begin()
    rows = session.fetch(_due, (has_cause,), values)
    for ids in chunks([row[0] for row in rows]):
        session.change(_lease_rows, (len(ids),), {**values, **numbered("id", ids)})
    session.end("COMMIT")
    return rows


def _due(has_cause: bool, *columns: ColumnElement[Any]) -> Select[Any]:
    """Select due rows, the longest due first, and pass over those that another claim is about to lease."""
    is_due = [outbox.c.prefix == PREFIX, outbox.c.available_at <= now(), has_time(outbox.c.available_at)]
    if has_cause:
        is_due += decided_by_cause()
    order = (outbox.c.available_at, outbox.c.id)
    limit: BindParameter[int] = bindparam("limit", type_=Integer())
    due = select(*(columns or _ROW)).where(*is_due).order_by(*order).limit(limit).with_for_update(skip_locked=True)
    return due if has_cause else due.with_hint(outbox, _BY_TIME, "mysql")


def decided_by_cause() -> list[ColumnElement[bool]]:
    """Conditions: a message decided the row."""
    return [outbox.c.cause == bound(outbox.c.cause, "cause"), outbox.c.step == bound(outbox.c.step, "step")]


def _lease_rows(count: int) -> Update:
    return update(outbox).where(outbox.c.prefix == PREFIX, one_of(outbox.c.id, "id", count)).values(_lease())


def _lease() -> dict[str, ColumnElement[Any]]:
    lease_ms: BindParameter[int] = bindparam("lease_ms", type_=BigInteger())
    return {"token": bound(outbox.c.token, "token"), "available_at": now() + lease_ms, "leased_until": now() + lease_ms}
