"""How items come back into the buffer: those that can be read now, and rejected ones."""

from collections.abc import Collection

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.sql.dead import discard
from celery_sagas.stores.sql.groups import GroupRow, digest, lock, lock_all, save
from celery_sagas.stores.sql.items import free_anew, insert_item, item_of_key, look_at_oldest, unresolved_among
from celery_sagas.stores.sql.session import Session


def resolve(session: Session, rules: Rules, group: str, numbers: Collection[int]) -> int:
    """Free unresolved items; return how many of them there were."""
    now, row = lock(session, rules.name, group)
    found = unresolved_among(session, row.place, numbers) if row is not None else []
    if row is not None and found:
        free_anew(session, found)
        row.unresolved -= len(found)
        _open(session, row, found)
        save(session, rules, now, [row])
    return len(found)


def restore(session: Session, rules: Rules, letter: DeadLetter) -> bool:
    """Insert the item of a letter and remove the letter, unless its id is buffered again, or the letter gone."""
    now, groups = lock_all(session, rules.name, {letter.key})
    row, key = groups[letter.key], digest(rules.name, letter.key, letter.message_id)
    is_wanted = item_of_key(session, key) is None and discard(session, letter.id)
    if is_wanted:
        item = {"number": letter.number, "id": letter.message_id, "payload": letter.payload, "at": letter.buffered_at}
        insert_item(session, {**item, "place": row.place, "key": key})
        _open(session, row, [letter.number])
    save(session, rules, now, [row])
    return is_wanted


def _open(session: Session, row: GroupRow, numbers: Collection[int]) -> None:
    """Count items that are free now, open the gate for them, and have the group looked at."""
    row.free += len(numbers)
    row.open(max(numbers), "again")
    row.marked_until = 0
    look_at_oldest(session, row)
