"""Changes of several instances, with their journal's lines and outgoing rows, in one statement of PostgreSQL's."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CTE, BigInteger, ColumnElement, Integer, Select, any_, bindparam, or_, select, update
from sqlalchemy import column as named
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from celery_sagas.stores.operations import Update
from celery_sagas.stores.sql.connection.bulk import rows_of
from celery_sagas.stores.sql.connection.statements import PREFIX, Shape, Values, now
from celery_sagas.stores.sql.sagas.effects import ENTRY, OUTGOING, in_order, outgoing_columns
from celery_sagas.stores.sql.sagas.instances import NOBODY, WRITTEN, next_version
from celery_sagas.stores.sql.tables import instance, journal, outbox

#: The columns of arrays, with their types: the instance as it was found and as it will be, the line, the lease on the rows.
_FOUND: Mapping[str, TypeEngine[Any]] = {
    **{name: instance.c[name].type for name in ("id", "version", "saga")},
    "lock_owner": instance.c.locked_by.type,
}
_LEASE: Mapping[str, TypeEngine[Any]] = {"owner": outbox.c.token.type, "grace_ms": BigInteger()}
_COLUMNS: Mapping[str, TypeEngine[Any]] = {
    "number": Integer(),
    **_FOUND,
    **{name: instance.c[name].type for name in WRITTEN},
    **{f"entry_{name}": journal.c[name].type for name in ENTRY},
    **_LEASE,
}


def update_each(sends: bool, cancels: bool) -> Select[Any]:
    """Change any number of instances, and select the numbers of those that were as expected."""
    changed = _changed()
    others = [_entries(changed), *([_sent(changed)] if sends else []), *([_cancelled(changed)] if cancels else [])]
    return select(changed.c.number).add_cte(*others)


def _changed() -> CTE:
    new = rows_of("commit", *(named(name, type_) for name, type_ in _COLUMNS.items()))
    ids = bindparam("commit_id", type_=ARRAY(instance.c.id.type))  # else the plan of a time with few instances reads all of them
    is_one = [instance.c.prefix == PREFIX, instance.c.id == any_(ids)]
    as_found = [*is_one, *(instance.c[name] == new.c[name] for name in ("id", "version", "saga"))]
    may_be_changed = or_(instance.c.locked_until <= now(), instance.c.locked_by == new.c.lock_owner)
    written: dict[str, ColumnElement[Any]] = {name: new.c[name] for name in WRITTEN}
    changed = update(instance).where(*as_found, may_be_changed).values(**written, **next_version(), **NOBODY)
    kept = ("number", *(f"entry_{name}" for name in ENTRY), *_LEASE)
    return changed.returning(*(new.c[name] for name in kept)).cte("changed")


def _entries(changed: CTE) -> CTE:
    columns = {"prefix": PREFIX, **{name: changed.c[f"entry_{name}"] for name in ENTRY}, "at": now()}
    return insert_into(journal).from_select(list(columns), select(*columns.values()).select_from(changed)).cte("entries")


def _sent(changed: CTE) -> CTE:
    rows = rows_of("outgoing", named("commit", Integer()), *(outbox.c[name] for name in OUTGOING))

    def of_commit(name: str) -> ColumnElement[Any]:
        return changed.c[name if name in _LEASE else f"entry_{name}"]

    columns = outgoing_columns(lambda column: rows.c[column.name], of_commit)
    source = changed.join(rows, rows.c["commit"] == changed.c.number)
    return insert_into(outbox).from_select(list(columns), select(*columns.values()).select_from(source)).cte("sent")


def _cancelled(changed: CTE) -> CTE:
    """Remove the rows that were cancelled by the instances that have decided them, and were as expected."""
    ids = bindparam("cancelled_ids", type_=ARRAY(outbox.c.id.type))
    decided = outbox.c.instance_id.in_(select(changed.c.entry_instance_id))
    rows = in_order(outbox.c.prefix == PREFIX, outbox.c.id == any_(ids), decided)
    return delete_from(outbox).where(*rows).cte("cancelled_rows")


def values_of(commits: Mapping[int, Update]) -> tuple[Shape, Values]:
    """Return the shape and the parameters of ``update_each``, for commits by their numbers."""
    rows = [(number, *row) for number, commit in commits.items() for row in commit.effects.outgoing]
    commit_values = _arrays("commit", tuple(_COLUMNS), [_row(number, commit) for number, commit in commits.items()])
    cancelled = [id for commit in commits.values() for id in commit.change.cancelled]
    sent = _arrays("outgoing", ("commit", *OUTGOING), rows) if rows else {}
    return (bool(rows), bool(cancelled)), {**commit_values, **sent, **({"cancelled_ids": cancelled} if cancelled else {})}


def _row(number: int, commit: Update) -> tuple[object, ...]:
    """Return a commit's values, in the order of ``_COLUMNS``."""
    (record, change, effects), line = commit, commit.effects.entry
    found = (record.id, record.version, record.saga, effects.lock_owner)
    written = (change.schema_version, change.data, change.pending)
    return (number, *found, *written, *line[: len(ENTRY)], effects.owner, effects.grace_ms)


def _arrays(name: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Values:
    arrays = map(list, zip(*rows, strict=True))
    return {f"{name}_{column}": array for column, array in zip(columns, arrays, strict=True)}
