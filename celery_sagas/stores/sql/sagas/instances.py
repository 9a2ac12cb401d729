"""Statements that write instances, their alternate keys and their tags, for every database."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Delete,
    Insert,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy import literal_column as literal

from celery_sagas.stores.records import Change, Effects, NewRecord, Record
from celery_sagas.stores.sql.connection.statements import PREFIX, Values, bound, now, one_of
from celery_sagas.stores.sql.tables import instance, key

#: The lock of nobody.
NOBODY: dict[str, ColumnElement[Any]] = {
    "locked_by": literal("''", instance.c.locked_by.type),
    "locked_until": literal("0", BigInteger()),
}
#: What a change writes, in the order of ``Change``'s fields.
WRITTEN = ("schema_version", "data", "pending")


def insert_instance(*conditions: ColumnElement[bool]) -> Insert:
    """Insert an instance if the conditions hold."""
    columns: dict[str, ColumnElement[Any]] = {
        "prefix": PREFIX,
        **{name: bound(instance.c[name], name) for name in ("id", "saga", "key", *WRITTEN)},
        "version": literal("1", BigInteger()),
        "created_at": now(),
        "updated_at": now(),
        **NOBODY,
    }
    return insert(instance).from_select(list(columns), select(*columns.values()).where(*conditions))


def update_instance(*conditions: ColumnElement[bool]) -> Update:
    """Change the instance that was found, if the conditions hold too; its lock ends."""
    written: dict[str, ColumnElement[Any]] = {name: bound(instance.c[name], name) for name in WRITTEN}
    return update(instance).where(_as_found(), *conditions).values(**written, **next_version(), **NOBODY)


def next_version() -> dict[str, ColumnElement[Any]]:
    """Return what every change sets."""
    return {"version": instance.c.version + literal("1", BigInteger()), "updated_at": now()}


def delete_instance() -> Delete:
    """Remove the instance that was found."""
    return delete(instance).where(_as_found())


def lock_instance() -> Update:
    """Lock an instance, whatever its version."""
    until = now() + bindparam("for_ms", type_=BigInteger())
    lock_owner = bound(instance.c.locked_by, "lock_owner")
    return update(instance).where(_is("id"), has_found_name(), _may_be_changed()).values(locked_by=lock_owner, locked_until=until)


def _as_found() -> ColumnElement[bool]:
    return and_(_is("id"), instance.c.version == bound(instance.c.version, "version"), has_found_name(), _may_be_changed())


def has_found_name() -> ColumnElement[bool]:
    """Condition: the instance has the name of its saga under which it was found."""
    return instance.c.saga == bound(instance.c.saga, "found_saga")


def _is(name: str) -> ColumnElement[bool]:
    return and_(instance.c.prefix == PREFIX, instance.c[name] == bound(instance.c[name], name))


def _may_be_changed() -> ColumnElement[bool]:
    """Condition: no other owner has locked it."""
    return or_(instance.c.locked_until <= now(), instance.c.locked_by == bound(instance.c.locked_by, "lock_owner"))


def is_key_free(former: int) -> list[ColumnElement[bool]]:
    """Conditions of an insert: no instance has the key under a former name; the unique key watches over today's."""
    taken = exists(literal("1")).where(_is("key"), one_of(instance.c.saga, "former", former))
    return [~taken] if former else []


def insert_key(former: int) -> Insert:
    """Insert an alternate key, unless it is there under a former name."""
    taken = exists(literal("1")).where(_is_key(), one_of(key.c.saga, "former", former))
    return _insert_key(*([~taken] if former else []))


def insert_tag() -> Insert:
    """Insert a tag, unless it is there: code that knows no tags may have changed the instance, and left it."""
    return _insert_key(~exists(literal("1")).where(_is_key()))


def _insert_key(*conditions: ColumnElement[bool]) -> Insert:
    columns: dict[str, ColumnElement[Any]] = {
        "prefix": PREFIX,
        **{name: bound(key.c[name], name) for name in ("property", "value", "saga", "instance_id")},
    }
    return insert(key).from_select(list(columns), select(*columns.values()).where(*conditions))


def delete_key() -> Delete:
    """Remove an alternate key or a tag from an instance, under whatever name of the saga it was added."""
    return delete(key).where(_is_key(), key.c.instance_id == bound(key.c.instance_id, "instance_id"))


def delete_keys() -> Delete:
    """Remove all alternate keys and tags of an instance."""
    return delete(key).where(key.c.prefix == PREFIX, key.c.instance_id == bound(key.c.instance_id, "id"))


def _is_key() -> ColumnElement[bool]:
    names = ("property", "value")
    return and_(key.c.prefix == PREFIX, *(key.c[name] == bound(key.c[name], name) for name in names))


def new_values(record: NewRecord) -> Values:
    """Return the parameters of ``insert_instance``."""
    return {"id": record.id, "saga": record.names[0], "key": record.key, **_written(record)}


def change_values(record: Record, change: Change, effects: Effects) -> Values:
    """Return the parameters of ``update_instance``."""
    return {**found_values(record, effects), **_written(change)}


def found_values(record: Record, effects: Effects) -> Values:
    """Return the parameters of ``delete_instance``."""
    return {"id": record.id, "version": record.version, "found_saga": record.saga, "lock_owner": effects.lock_owner}


def _written(change: NewRecord | Change) -> Values:
    return {"schema_version": change.schema_version, "data": change.data, "pending": change.pending}
