"""Unresolved and rejected items in SQL."""

from collections.abc import Sequence

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.aggregates import Leftovers
from celery_sagas.stores.items import Kept
from celery_sagas.stores.sql import items
from celery_sagas.stores.sql.calls import in_transaction
from celery_sagas.stores.sql.database import Database
from celery_sagas.stores.sql.groups import GroupRow, lock_all, save
from celery_sagas.stores.sql.items import REJECTED, UNRESOLVED, look_at_oldest, numbers_of_keys
from celery_sagas.stores.sql.kept import KeptRow, find_kept, forget_kept, numbers_of, select_kept, update_notes
from celery_sagas.stores.sql.remembered import remember
from celery_sagas.stores.sql.session import Session
from celery_sagas.stores.sql.statements import Values, in_parts


class SqlLeftovers(Leftovers):
    """Rows of ``saga_kept``, with their items in ``saga_buffer``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def kept(self, name: str, kind: str, limit: int, after: str = "") -> list[Kept]:
        numbers = numbers_of([after]) if after else [0]
        return self._list({"aggregator": name, "kind": kind, "limit": limit, "after": numbers[0]}) if numbers else []

    def unread(self, name: str, reader: str, limit: int) -> list[Kept]:
        return self._list({"aggregator": name, "kind": UNRESOLVED, "limit": limit, "after": 0, "reader": reader})

    def _list(self, values: Values) -> list[Kept]:
        rows = self._database.fetch(select_kept, ("reader" in values,), values)
        return [Kept(f"{handle}", *fields) for handle, *fields in rows]

    def note(self, name: str, handles: Sequence[str], reader: str) -> int:
        values = {"aggregator": name, "kind": UNRESOLVED, "reader": reader}
        return in_transaction(self._database, lambda session: _note(session, values, handles))

    def put_back(self, rules: Rules, handles: Sequence[str]) -> int:
        return in_transaction(self._database, lambda session: _put_back(session, rules, handles))

    def discard(self, rules: Rules, handles: Sequence[str]) -> int:
        return in_transaction(self._database, lambda session: _discard(session, rules, handles))


def _note(session: Session, values: Values, handles: Sequence[str]) -> int:
    parts = in_parts(session.database, "handle", numbers_of(handles))
    return sum(session.change(update_notes, (count,), {**values, **given}) for count, given in parts)


def _put_back(session: Session, rules: Rules, handles: Sequence[str]) -> int:
    now, groups, rows = _lock(session, rules, handles)
    rows = _without_twins(session, rows)
    items.free_anew(session, [row.number for row in rows])
    forget_kept(session, rows)
    for row in rows:
        _count_back(groups[row.grp], row)
    for grp in {row.grp for row in rows}:
        groups[grp].marked_until = 0
        look_at_oldest(session, groups[grp])
    save(session, rules, now, list(groups.values()))
    return len(rows)


def _without_twins(session: Session, rows: Sequence[KeptRow]) -> list[KeptRow]:
    """Leave out what was rejected, and would be in the buffer twice."""
    buffered = {key for _, key in numbers_of_keys(session, [row.key for row in rows if row.kind == REJECTED])}
    first: dict[str, KeptRow] = {}
    for row in sorted(rows, key=lambda row: row.kind == REJECTED):
        if row.kind == UNRESOLVED or row.key not in buffered:
            first.setdefault(row.key, row)
    return list(first.values())


def _count_back(group: GroupRow, row: KeptRow) -> None:
    group.free += 1
    group.unresolved -= int(row.kind == UNRESOLVED)
    group.open(row.number, "again")


def _discard(session: Session, rules: Rules, handles: Sequence[str]) -> int:
    now, groups, rows = _lock(session, rules, handles)
    unresolved = [row for row in rows if row.kind == UNRESOLVED]
    remember(session, rules, now, [groups[row.grp] for row in unresolved], [row.number for row in unresolved])
    items.remove(session, [row.number for row in rows])
    forget_kept(session, rows)
    for row in unresolved:
        groups[row.grp].unresolved -= 1
    save(session, rules, now, list(groups.values()))
    return len(rows)


def _lock(session: Session, rules: Rules, handles: Sequence[str]) -> tuple[int, dict[str, GroupRow], list[KeptRow]]:
    """Lock the groups of leftovers, and find those that are still there: until then others may have changed them."""
    found = find_kept(session, rules.name, handles)
    if not found:
        return 0, {}, []
    now, groups = lock_all(session, rules.name, {row.grp for row in found})
    return now, groups, find_kept(session, rules.name, handles)
