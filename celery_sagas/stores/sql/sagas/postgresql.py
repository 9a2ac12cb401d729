"""Commits for PostgreSQL: one statement, which is its own transaction.

The instance comes first; everything else is inserted from its result, so that a stale commit writes nothing. No part of it may
have an ``ON CONFLICT``: a key that is there already must undo the whole.
"""

from typing import Any

from sqlalchemy import CTE, ColumnElement, Insert, any_, bindparam, exists, select, true, tuple_
from sqlalchemy import delete as delete_from
from sqlalchemy import insert as insert_into
from sqlalchemy import literal_column as literal
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.selectable import TableValuedAlias

from celery_sagas.stores.records import Change, Effects, NewRecord, Record
from celery_sagas.stores.sql.connection.bulk import rows_of
from celery_sagas.stores.sql.connection.statements import PREFIX, Execution, Values, bound, numbered, one_of
from celery_sagas.stores.sql.sagas.effects import (
    OUTGOING,
    audit_columns,
    audit_values,
    decided_by_instance,
    entry_columns,
    entry_values,
    in_order,
    lease_values,
    outgoing_columns,
    rows_of_instance,
)
from celery_sagas.stores.sql.sagas.instances import (
    change_values,
    delete_instance,
    delete_keys,
    found_values,
    insert_instance,
    is_key_free,
    new_values,
    update_instance,
)
from celery_sagas.stores.sql.tables import TAG, audit, instance, journal, key, outbox

_Keys = tuple[tuple[str, str], ...]


def insert(record: NewRecord, effects: Effects) -> list[Execution]:
    """Commit a new instance."""
    former = record.names[1:]
    shape = (len(former), bool(record.keys), bool(record.tags), *_shape_of(effects))
    values = {
        **new_values(record),
        **_new_key_values(record.names, record.keys),
        **_tag_values(record.tags),
        **_effect_values(effects),
    }
    return [Execution(_insert, shape, values, is_required=True)]


def _insert(former: int, adds: bool, tags: bool, sends: int, audits: bool) -> Insert:
    free = [*is_key_free(former), *_are_keys_free(former if adds else 0)]
    changed = insert_instance(*free).returning(instance.c.id).cte("changed")
    keys = [*([_added(changed)] if adds else []), *([_tagged(changed)] if tags else [])]
    return _entry_of(changed, *keys, *_effects_of(changed, sends, audits=audits))


def update(record: Record, change: Change, effects: Effects) -> list[Execution]:
    """Commit a change."""
    former = change.names[1:] if change.added_keys else ()
    removed = change.removed_keys + change.removed_tags
    adds = (bool(change.added_keys), bool(change.added_tags))
    shape = (len(former), *adds, bool(removed), bool(change.cancelled), *_shape_of(effects))
    values = {
        **change_values(record, change, effects),
        **_new_key_values(change.names, change.added_keys),
        **_tag_values(change.added_tags),
        **_key_values("old", removed),
        "cancelled_ids": list(change.cancelled),
        **_effect_values(effects),
    }
    return [Execution(_update, shape, values, is_required=True)]


def _update(former: int, adds: bool, tags: bool, removes: bool, cancels: bool, sends: int, audits: bool) -> Insert:
    changed = update_instance(*_are_keys_free(former)).returning(instance.c.id).cte("changed")
    added = [*([_added(changed)] if adds else []), *([_tagged(changed)] if tags else [])]
    keys = [*([_removed(changed)] if removes else []), *added]
    return _entry_of(changed, *keys, *([_cancelled(changed)] if cancels else []), *_effects_of(changed, sends, audits=audits))


def delete(record: Record, effects: Effects) -> list[Execution]:
    """Commit the end of an instance."""
    values = {**found_values(record, effects), **_effect_values(effects)}
    return [Execution(_delete, _shape_of(effects), values, is_required=True)]


def _delete(sends: int, audits: bool) -> Insert:
    changed = delete_instance().returning(instance.c.id).cte("changed")
    keys = delete_keys().where(_is_changed(changed)).cte("removed")
    rows = delete_from(outbox).where(*in_order(*rows_of_instance(), _is_changed(changed))).cte("ended")
    return _entry_of(changed, keys, rows, *_effects_of(changed, sends, audits=audits))


def record(effects: Effects) -> list[Execution]:
    """Commit the effects alone."""
    return [Execution(_record, _shape_of(effects), _effect_values(effects))]


def _record(sends: int, audits: bool) -> Insert:
    changed = select(literal("1").label("id")).cte("changed")
    return _entry_of(changed, *_effects_of(changed, sends, audits=audits))


def _entry_of(changed: CTE, *others: CTE) -> Insert:
    """Insert the journal's line, if there is a changed instance; beside the other parts of the statement."""
    columns = entry_columns()
    line = select(*columns.values()).select_from(changed)
    return insert_into(journal).from_select(list(columns), line).add_cte(*others)


def _shape_of(effects: Effects) -> tuple[int, bool]:
    """Return for how many outgoing rows a statement is made: none, one, or (2) any number; and whether it writes the audit."""
    return min(len(effects.outgoing), 2), effects.audit is not None


def _effects_of(changed: CTE, sends: int, *, audits: bool) -> list[CTE]:
    """Return what is written besides the journal's line."""
    return [*([_sent(changed, sends)] if sends else []), *([_audited(changed)] if audits else [])]


def _audited(changed: CTE) -> CTE:
    columns = audit_columns()
    entry = select(*columns.values()).select_from(changed)
    return insert_into(audit).from_select(list(columns), entry).cte("audited")


def _sent(changed: CTE, count: int) -> CTE:
    """Insert the outgoing rows; a single one not from arrays, which take the driver much longer."""
    if count == 1:
        columns = outgoing_columns(lambda column: bound(column, f"outgoing_{column.name}"))
        return insert_into(outbox).from_select(list(columns), select(*columns.values()).select_from(changed)).cte("sent")
    rows = rows_of("outgoing", *(outbox.c[name] for name in OUTGOING))
    columns = outgoing_columns(lambda column: rows.c[column.name])
    return _insert_each(outbox, columns, changed, rows).cte("sent")


def _cancelled(changed: CTE) -> CTE:
    ids = bindparam("cancelled_ids", type_=ARRAY(outbox.c.id.type))  # a join with ``unnest`` would read all rows of the instance
    rows = in_order(*decided_by_instance(), outbox.c.id == any_(ids), _is_changed(changed))
    return delete_from(outbox).where(*rows).cte("cancelled_rows")


def _added(changed: CTE) -> CTE:
    rows = rows_of("new", key.c.property, key.c.value)
    return _insert_each(key, _key_columns(changed, rows.c.property, rows.c.value), changed, rows).cte("added")


def _tagged(changed: CTE) -> CTE:
    """Insert those of the tags that are not there: code that knows no tags may have changed the instance, and left some."""
    rows, property = rows_of("tag", key.c.value), literal(f"'{TAG}'", key.c.property.type)
    is_there = [key.c.prefix == PREFIX, key.c.property == property, key.c.value == rows.c.value]
    # not NOT EXISTS, which PostgreSQL can make a join with all tags
    found = select(literal("1")).where(*is_there).limit(1).scalar_subquery()
    return _insert_each(key, _key_columns(changed, property, rows.c.value), changed, rows, found.is_(None)).cte("tagged")


def _key_columns(changed: CTE, property: ColumnElement[str], value: ColumnElement[str]) -> dict[str, ColumnElement[Any]]:
    saga = bound(key.c.saga, "key_saga")
    return {"prefix": PREFIX, "property": property, "value": value, "saga": saga, "instance_id": changed.c.id}


def _insert_each(
    table: Any, columns: dict[str, ColumnElement[Any]], changed: CTE, rows: TableValuedAlias, *conditions: ColumnElement[bool]
) -> Insert:
    each = select(*columns.values()).select_from(changed.join(rows, true())).where(*conditions)
    return insert_into(table).from_select(list(columns), each)


def _removed(changed: CTE) -> CTE:
    rows = rows_of("old", key.c.property, key.c.value)
    is_old = tuple_(key.c.property, key.c.value).in_(select(rows.c.property, rows.c.value))
    return delete_keys().where(is_old, _is_changed(changed)).cte("removed")


def _is_changed(changed: CTE) -> ColumnElement[bool]:
    return exists(literal("1")).select_from(changed)


def _are_keys_free(former: int) -> list[ColumnElement[bool]]:
    """Conditions: none of the new alternate keys is there under a former name."""
    rows = rows_of("new", key.c.property, key.c.value)
    values = bindparam("new_value", type_=ARRAY(key.c.value.type))  # a join alone may read all keys
    is_same = [
        key.c.prefix == PREFIX,
        key.c.value == any_(values),
        key.c.property == rows.c.property,
        key.c.value == rows.c.value,
    ]
    taken = exists(literal("1")).where(*is_same, one_of(key.c.saga, "former", former))
    return [~taken] if former else []


def _new_key_values(names: tuple[str, ...], keys: _Keys) -> Values:
    return {"key_saga": names[0], **numbered("former", names[1:]), **_key_values("new", keys)}


def _tag_values(rows: _Keys) -> Values:
    return {"tag_value": [value for _, value in rows]}


def _key_values(name: str, keys: _Keys) -> Values:
    return {f"{name}_property": [property for property, _ in keys], f"{name}_value": [value for _, value in keys]}


def _effect_values(effects: Effects) -> Values:
    line = {**entry_values(effects.entry), **audit_values(effects.audit)}
    if not effects.outgoing:
        return line
    rows = effects.outgoing
    columns = {name: [getattr(row, name) for row in rows] if len(rows) > 1 else getattr(rows[0], name) for name in OUTGOING}
    return {**line, **lease_values(effects), **{f"outgoing_{name}": value for name, value in columns.items()}}
