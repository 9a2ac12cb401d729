"""Outgoing messages in SQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Column,
    ColumnElement,
    Delete,
    Select,
    Update,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    update,
)
from sqlalchemy import literal_column as literal

from celery_sagas.stores.outbox import Outbox
from celery_sagas.stores.records import (
    KEPT_MOST_MS,
    Entry,
    OutboxGlance,
    OutboxPage,
    OutboxRow,
    OutboxTally,
)
from celery_sagas.stores.sql.connection.database import Database, Row, SqlSession
from celery_sagas.stores.sql.connection.statements import (
    LIMIT,
    PREFIX,
    Build,
    Execution,
    Shape,
    Values,
    any_of,
    bound,
    chunks,
    in_parts,
    limit_of_count,
    now,
    numbered,
    one_of,
)
from celery_sagas.stores.sql.overdue import BY_TIME, GLANCE, forced, overdue
from celery_sagas.stores.sql.sagas.effects import in_order
from celery_sagas.stores.sql.tables import has_time, outbox

#: How many characters of an error are kept.
_ERROR_CHARACTERS = 2_000


class SqlOutbox(Outbox):
    """Outgoing rows in the table ``saga_outbox``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim_due(self, token: str, limit: int, lease_ms: int, cause: Entry | None = None) -> list[OutboxRow]:
        values: dict[str, object] = {"token": token, "limit": limit, "lease_ms": lease_ms}
        if cause:
            values |= _of_cause(cause)
        if self._database.name == "postgresql":
            claimed = self._database.fetch(_claim, (cause is not None,), values)
            rows = [row[:-1] for row in sorted(claimed, key=lambda row: (row[-1], row[0]))]
        else:
            shape = (cause is not None, self._database.names.of(BY_TIME))
            rows = self._database.in_transaction(lambda session: _lease_due(session, shape, values))
        return [OutboxRow(*row) for row in rows]

    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        if keep_ms:
            return self._change_rows(_keep_rows, token, ids, {"keep_ms": keep_ms})
        return self._change_rows(_delete_rows, token, ids)

    def release(self, token: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        return self._change_rows(_release_rows, token, ids, {"delay_ms": delay_ms})

    def reschedule(self, token: str, rows: Sequence[OutboxRow]) -> int:
        database, by_id = self._database, {row.id: row for row in rows}
        steps = [Execution(_reschedule_row, (database.name,), _of_next(token, by_id[id])) for id in sorted(by_id)]
        return database.run(lambda session: session.change_all(steps)) if steps else 0

    def fail(self, token: str, id: str, error: str, delay_ms: int) -> bool:
        values = {"token": token, "id_0": id, "error": error[:_ERROR_CHARACTERS], "delay_ms": delay_ms}
        return self._database.change(_fail_row, (self._database.name,), values) > 0

    def hurry(self, ids: Sequence[str]) -> int:
        database = self._database
        parts = _parts(database.name, sorted(set(ids)))
        steps = [Execution(_hurry_rows, (count, database.name), values) for count, values in parts]
        return database.run(lambda session: session.change_all(steps)) if steps else 0

    def read(self, ids: Sequence[str]) -> list[OutboxGlance]:
        found = dict[str, OutboxGlance]()
        for count, values in _parts(self._database.name, list(dict.fromkeys(ids))):
            rows = self._database.fetch(_read_rows, (count,), values)
            found |= {row[0]: OutboxGlance(*row) for row in rows}
        return [found[id] for id in ids if id in found]

    def tried(self, until: int, limit: int, after: str = "") -> list[OutboxGlance]:
        at, _, id = after.partition(":")
        values = {"until": until, "limit": limit, "after_at": int(at or 0), "after_id": id}
        shape = (bool(after), self._database.names.of(_BY_TRIAL))
        return [OutboxGlance(*row) for row in self._database.fetch(_tried, shape, values)]

    def overdue(self, before: int, limit: int, after: str = "") -> OutboxPage:
        return overdue(self._database, before, limit, after)

    def tally(self, at_most: int) -> OutboxTally:
        limit, database, names = {"limit": at_most}, self._database.name, self._database.names
        ((due, oldest),) = self._database.fetch(_tally_due, (database, names.of(BY_TIME)), limit)
        ((tried, _),) = self._database.fetch(_tally_tried, (database, names.of(_BY_TRIAL)), limit)
        return OutboxTally(int(due), int(oldest or 0), int(tried))

    def time(self) -> int:
        ((time,),) = self._database.fetch(_time, (), {})
        return int(time)

    def count(self) -> int:
        ((count,),) = self._database.fetch(_count, (), {})
        return int(count)

    def count_leased(self, cause: Entry) -> int:
        ((count,),) = self._database.fetch(_count_leased, (), _of_cause(cause))
        return int(count)

    def _change_rows(self, build: Build, token: str, ids: Sequence[str], values: Values | None = None) -> int:
        """Run a statement on the rows, part by part: all in one transaction, so that the disk is waited for once."""
        common, database = {**(values or {}), "token": token}, self._database
        parts = _parts(database.name, sorted(set(ids)))
        steps = [Execution(build, (count, database.name), {**common, **part}) for count, part in parts]
        return database.run(lambda session: session.change_all(steps)) if steps else 0


def _parts(database: str, ids: Sequence[str]) -> list[tuple[int, Values]]:
    """Return the counts and the parameters of statements on rows: PostgreSQL takes one for all of them."""
    if database == "postgresql":
        return in_parts(database, "id", ids)
    return [(len(part), numbered("id", part)) for part in chunks(ids)]


def _of_cause(cause: Entry) -> dict[str, object]:
    return {"cause": cause.message_id, "step": cause.step}


def _of_next(token: str, row: OutboxRow) -> dict[str, object]:
    return {"token": token, "id_0": row.id, "message_id": row.message_id, "payload": row.payload, "due_at": row.due_at}


def _delete_rows(count: int, database: str) -> Delete:
    return delete(outbox).where(*_held(count, database))


def _keep_rows(count: int, database: str) -> Update:
    """Make rows due again, after the longer one of the given time and of that since they were tried first."""
    keep_ms: BindParameter[int] = bindparam("keep_ms", type_=BigInteger())
    known, most = outbox.c.tried_at > literal("0"), literal(str(KEPT_MOST_MS), BigInteger())
    since = case((known, now() - outbox.c.tried_at), else_=literal("0", BigInteger()))
    known_since = case((since > most, most), else_=since)
    kept = {
        "available_at": now() + case((known_since > keep_ms, known_since), else_=keep_ms),
        "leased_until": literal("0", BigInteger()),
        "attempts": literal("0", outbox.c.attempts.type),
        "error": literal("''", outbox.c.error.type),
        "tried_at": _first_tried(),
    }
    return update(outbox).where(*_held(count, database)).ordered_values(*((outbox.c[name], kept[name]) for name in kept))


def _first_tried() -> ColumnElement[Any]:
    return case((outbox.c.tried_at > literal("0"), outbox.c.tried_at), else_=now())


def _release_rows(count: int, database: str) -> Update:
    return update(outbox).where(*_held(count, database)).values(_due_again())


def _hurry_rows(count: int, database: str) -> Update:
    rows = [outbox.c.prefix == PREFIX, any_of(outbox.c.id, "id", count)]
    is_ahead = [outbox.c.available_at > now(), outbox.c.leased_until <= now()]
    where = in_order(*rows, *is_ahead) if database == "postgresql" else [*rows, *is_ahead]
    return update(outbox).where(*where).values(available_at=now())


def _fail_row(database: str) -> Update:
    failed = {
        "attempts": outbox.c.attempts + literal("1"),
        "error": bound(outbox.c.error, "error"),
        "tried_at": _first_tried(),
    }
    return update(outbox).where(*_held(1, database)).values({**failed, **_due_again()})


def _reschedule_row(database: str) -> Update:
    next = {name: bound(outbox.c[name], name) for name in ("message_id", "payload", "due_at")}
    unleased = {"available_at": next["due_at"], "leased_until": literal("0", BigInteger()), "token": literal("''")}
    untried = {
        "attempts": literal("0", outbox.c.attempts.type),
        "error": literal("''", outbox.c.error.type),
        "tried_at": literal("0", BigInteger()),
    }
    return update(outbox).where(*_held(1, database)).values({**next, **unleased, **untried})


def _due_again() -> dict[str, ColumnElement[Any]]:
    """Return what ends a lease; the row is due after the delay."""
    delay_ms: BindParameter[int] = bindparam("delay_ms", type_=BigInteger())
    return {"available_at": now() + delay_ms, "leased_until": literal("0", BigInteger())}


def _held(count: int, database: str) -> list[ColumnElement[bool]]:
    """Conditions: these rows, if the token's lease lasts or was the last."""
    is_held = [outbox.c.prefix == PREFIX, any_of(outbox.c.id, "id", count), outbox.c.token == bound(outbox.c.token, "token")]
    return in_order(*is_held) if database == "postgresql" else is_held


def _time() -> Select[Any]:
    return select(now())


def _count_leased() -> Select[Any]:
    return _count().where(*decided_by_cause(), outbox.c.leased_until > now(), outbox.c.attempts == literal("0"))


def _count() -> Select[Any]:
    return select(func.count()).select_from(outbox).where(outbox.c.prefix == PREFIX)


#: The index that MySQL is told to use for rows that were tried.
_BY_TRIAL = "saga_outbox_tried"
#: In the order of ``OutboxRow``'s fields.
_ROW: list[ColumnElement[Any]] = [outbox.c[name] for name in OutboxRow._fields]


def _read_rows(count: int) -> Select[Any]:
    return select(*GLANCE).where(outbox.c.prefix == PREFIX, any_of(outbox.c.id, "id", count))


def _tried(is_after: bool, by_trial: str) -> Select[Any]:
    """Select rows that were tried, behind a place in their order."""
    at: BindParameter[int] = bindparam("after_at", type_=BigInteger())
    until: BindParameter[int] = bindparam("until", type_=BigInteger())
    is_tried = [outbox.c.prefix == PREFIX, outbox.c.tried_at <= until, has_time(outbox.c.tried_at)]
    if is_after:
        id = bound(outbox.c.id, "after_id")
        is_tried += [outbox.c.tried_at >= at, or_(outbox.c.tried_at > at, outbox.c.id > id)]
    order = (outbox.c.tried_at, outbox.c.id)
    return select(*GLANCE).where(*is_tried).order_by(*order).limit(LIMIT).with_hint(outbox, forced(by_trial), "mysql")


def _tally_due(database: str, by_time: str) -> Select[Any]:
    is_due = [outbox.c.prefix == PREFIX, outbox.c.available_at <= now(), has_time(outbox.c.available_at)]
    return _tally(outbox.c.available_at, is_due, database, by_time)


def _tally_tried(database: str, by_trial: str) -> Select[Any]:
    return _tally(outbox.c.tried_at, [outbox.c.prefix == PREFIX, has_time(outbox.c.tried_at)], database, by_trial)


def _tally(column: Column[Any], conditions: Sequence[ColumnElement[bool]], database: str, index: str) -> Select[Any]:
    """Count rows by an index, up to a limit, and select the first time."""
    rows = select(column.label("at")).where(*conditions).order_by(column).limit(limit_of_count(database))
    counted = rows.with_hint(outbox, forced(index), "mysql").subquery("counted")
    columns: list[ColumnElement[Any]] = [func.count(), func.min(counted.c.at)]
    return select(*columns).select_from(counted)


def _claim(has_cause: bool) -> Update:
    """Lease due rows on PostgreSQL, which runs the part that chooses them once, so that the limit holds."""
    due = _due(has_cause, BY_TIME, outbox.c.id, outbox.c.available_at).cte("due")
    return (
        update(outbox)
        .where(outbox.c.prefix == PREFIX, outbox.c.id == due.c.id)
        .values(_lease())
        .returning(*_ROW, due.c.available_at)
    )


def _lease_due(session: SqlSession, shape: Shape, values: Values) -> list[Row]:
    """Lease due rows on databases whose ``UPDATE`` returns nothing."""
    rows = session.fetch(_due, shape, values)
    for ids in chunks([row[0] for row in rows]):
        session.change(_lease_rows, (len(ids),), {**values, **numbered("id", ids)})
    return rows


def _due(has_cause: bool, by_time: str, *columns: ColumnElement[Any]) -> Select[Any]:
    """Select due rows, the longest due first, and pass over those that another claim is about to lease.

    Args:
        has_cause: Whether only those of one message are.
        by_time: What the index by time is called in this database.
        columns: What is selected of them; all of a row if left out.
    """
    is_due = [outbox.c.prefix == PREFIX, outbox.c.available_at <= now(), has_time(outbox.c.available_at)]
    if has_cause:
        is_due += decided_by_cause()
    order = (outbox.c.available_at, outbox.c.id)
    due = select(*(columns or _ROW)).where(*is_due).order_by(*order).limit(LIMIT).with_for_update(skip_locked=True)
    return due if has_cause else due.with_hint(outbox, forced(by_time), "mysql")


def decided_by_cause() -> list[ColumnElement[bool]]:
    """Conditions: a message decided the row."""
    return [outbox.c.cause == bound(outbox.c.cause, "cause"), outbox.c.step == bound(outbox.c.step, "step")]


def _lease_rows(count: int) -> Update:
    return update(outbox).where(outbox.c.prefix == PREFIX, one_of(outbox.c.id, "id", count)).values(_lease())


def _lease() -> dict[str, ColumnElement[Any]]:
    lease_ms: BindParameter[int] = bindparam("lease_ms", type_=BigInteger())
    return {"token": bound(outbox.c.token, "token"), "available_at": now() + lease_ms, "leased_until": now() + lease_ms}
