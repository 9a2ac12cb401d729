"""Changes of a group by hand, for operators."""

from collections.abc import Sequence

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.errors import ItemNotBuffered, NothingBuffered
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.sql.aggregators.flushes import end_leases
from celery_sagas.stores.sql.aggregators.groups import digest, lock, lock_all, save
from celery_sagas.stores.sql.aggregators.items import (
    FREE,
    LEASED,
    STATES,
    UNRESOLVED,
    insert_item,
    item_of_key,
    last_number,
    look_at_oldest,
    numbers_in,
    remove,
)
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.dead_letters import discard


def fire_trigger(session: SqlSession, rules: Rules, group: str) -> bool:
    """Fire the trigger of a group for everything that is free or leased, and request its flush."""
    now, row = lock(session, rules.name, group)
    if row is None or not row.free + row.leased:
        return False
    row.fire(max(last_number(session, row.group_digest, state) for state in (FREE, LEASED)), "requested")
    look_at_oldest(session, row)
    row.paused_until = 0
    row.flush_requested_until = now + rules.lease_ms
    save(session, rules, now, [row])
    return True


def remove_item(session: SqlSession, rules: Rules, group: str, id: str, states: Sequence[str]) -> None:
    """Remove the item with an id, if it is in one of these states."""
    now, row = lock(session, rules.name, group)
    if row is None:
        raise NothingBuffered(rules.name, group)
    number, state = item_of_key(session, digest(rules.name, group, id)) or (0, LEASED)
    if state not in states:
        raise ItemNotBuffered(rules.name, group, id, row.buffered)
    remove(session, rules, now, row, [number])
    if state == UNRESOLVED:
        row.unresolved -= 1
    else:
        row.free -= 1
        look_at_oldest(session, row)
    save(session, rules, now, [row])


def restore(session: SqlSession, rules: Rules, dead_letter: DeadLetter) -> bool:
    """Insert the item of a dead letter and remove the dead letter, unless its id is buffered again, or the dead letter gone."""
    now, groups = lock_all(session, rules.name, {dead_letter.key})
    row, key = groups[dead_letter.key], digest(rules.name, dead_letter.key, dead_letter.message_id)
    is_wanted = item_of_key(session, key) is None and discard(session, dead_letter.id)
    if is_wanted:
        item = {
            "number": dead_letter.number,
            "id": dead_letter.message_id,
            "payload": dead_letter.payload,
            "at": dead_letter.buffered_at,
        }
        insert_item(session, {**item, "group_digest": row.group_digest, "key": key})
        row.back([dead_letter.number])
        look_at_oldest(session, row)
    save(session, rules, now, [row])
    return is_wanted


def clear(session: SqlSession, rules: Rules, group: str) -> int:
    """Remove all items of a group, and give its leases up."""
    now, row = lock(session, rules.name, group)
    if row is None:
        return 0
    count = row.buffered
    for state in STATES:
        while numbers := numbers_in(session, row.group_digest, state):
            remove(session, rules, now, row, numbers)
    end_leases(session, row.group_digest)
    row.free = row.leased = row.unresolved = 0
    save(session, rules, now, [row])
    return count
