"""Commits for SQLite, MariaDB and MySQL: one table after the other, in a transaction."""

from sqlalchemy import Insert

from celery_sagas.stores.records import Change, Effects, NewRecord, Record
from celery_sagas.stores.sql.connection.statements import Execution, chunks, numbered
from celery_sagas.stores.sql.sagas.effects import delete_cancelled, delete_rows_of_instance, effect_steps
from celery_sagas.stores.sql.sagas.instances import (
    change_values,
    delete_instance,
    delete_key,
    delete_keys,
    found_values,
    insert_instance,
    insert_key,
    insert_tag,
    is_key_free,
    new_values,
    update_instance,
)


def insert(record: NewRecord, effects: Effects) -> list[Execution]:
    """Commit a new instance."""
    former = record.names[1:]
    values = {**new_values(record), **numbered("former", former)}
    return [
        Execution(_insert_instance, (len(former),), values, is_required=True),
        *_add_keys(record.id, record.names, record.keys),
        *_add_tags(record.id, record.names[0], record.tags),
        *effect_steps(effects),
    ]


def _insert_instance(former: int) -> Insert:
    return insert_instance(*is_key_free(former))


def update(record: Record, change: Change, effects: Effects) -> list[Execution]:
    """Commit a change; keys are removed first, so that a value can move from one property to another."""
    return [
        Execution(update_instance, (), change_values(record, change, effects), is_required=True),
        *_remove_keys(record.id, change.removed_keys + change.removed_tags),
        *_add_keys(record.id, change.names, change.added_keys),
        *_add_tags(record.id, change.names[0], change.added_tags),
        *_cancel(record.id, change.cancelled),
        *effect_steps(effects),
    ]


def delete(record: Record, effects: Effects) -> list[Execution]:
    """Commit the end of an instance."""
    values = found_values(record, effects)
    return [
        Execution(delete_instance, (), values, is_required=True),
        Execution(delete_keys, (), values),
        Execution(delete_rows_of_instance, (), values),
        *effect_steps(effects),
    ]


def record(effects: Effects) -> list[Execution]:
    """Commit the effects alone."""
    return effect_steps(effects)


def _add_keys(id: str, names: tuple[str, ...], keys: tuple[tuple[str, str], ...]) -> list[Execution]:
    former = names[1:]
    common = {"saga": names[0], "instance_id": id, **numbered("former", former)}
    return [
        Execution(insert_key, (len(former),), {**common, "property": property, "value": value}, is_required=True)
        for property, value in keys
    ]


def _add_tags(id: str, name: str, rows: tuple[tuple[str, str], ...]) -> list[Execution]:
    common = {"saga": name, "instance_id": id}
    return [Execution(insert_tag, (), {**common, "property": property, "value": value}) for property, value in rows]


def _remove_keys(id: str, keys: tuple[tuple[str, str], ...]) -> list[Execution]:
    return [Execution(delete_key, (), {"instance_id": id, "property": property, "value": value}) for property, value in keys]


def _cancel(id: str, rows: tuple[str, ...]) -> list[Execution]:
    parts = chunks(sorted(set(rows)))
    return [Execution(delete_cancelled, (len(part),), {"id": id, **numbered("cancelled", part)}) for part in parts]
