"""Buffers in SQL, inspected and changed by hand."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.errors import ItemNotBuffered, NothingBuffered
from celery_sagas.stores.aggregates import Buffers
from celery_sagas.stores.items import Counts, Group, Item
from celery_sagas.stores.sql.aggregators import items
from celery_sagas.stores.sql.aggregators.flushes import end_leases
from celery_sagas.stores.sql.aggregators.groups import lock, save
from celery_sagas.stores.sql.aggregators.items import FREE, LEASED, STATES, UNRESOLVED
from celery_sagas.stores.sql.connection.database import Database, SqlSession
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound
from celery_sagas.stores.sql.digests import digest
from celery_sagas.stores.sql.tables import aggregator, group

#: In the order of ``Group``'s fields.
_GROUP: list[ColumnElement[Any]] = [group.c[name] for name in ("grp", "free", "leased", "unresolved", "due_at")]


class SqlBuffers(Buffers):
    """A view of the tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def names(self) -> list[str]:
        return [name for (name,) in self._database.fetch(_names, (), {})]

    def count(self, name: str, group: str | None = None) -> Counts:
        ((groups, buffered, unresolved),) = self._database.fetch(_count, (group is not None,), {"name": name, "grp": group})
        return Counts(int(groups), int(buffered or 0), int(unresolved or 0))

    def groups(self, name: str, limit: int, after: str = "") -> list[Group]:
        rows = self._database.fetch(_groups, (bool(after),), {"name": name, "limit": limit, "after": after})
        return [Group(*row) for row in rows]

    def read(self, name: str, group: str, limit: int, after: int = 0) -> list[Item]:
        group_digest = digest(name, group)
        return self._database.run(lambda session: items.first_items(session, group_digest, STATES, limit, after))

    def unresolved(self, name: str, limit: int, after: tuple[str, int] | None = None) -> list[tuple[str, Item]]:
        values: dict[str, object] = {"aggregator": name, "state": UNRESOLVED, "limit": limit}
        if after:
            values |= {"group_digest": digest(name, after[0]), "number": after[1]}
        return [(row[0], Item(*row[1:])) for row in self._database.fetch(items.select_unresolved, (after is not None,), values)]

    def fire(self, rules: Rules, group: str) -> bool:
        return self._database.in_transaction(lambda session: fire_trigger(session, rules, group))

    def remove(self, rules: Rules, group: str, id: str, *, unresolved: bool = False) -> None:
        states = (UNRESOLVED,) if unresolved else (FREE, UNRESOLVED)
        self._database.in_transaction(lambda session: remove_item(session, rules, group, id, states))

    def clear(self, rules: Rules, group: str) -> int:
        return self._database.in_transaction(lambda session: clear(session, rules, group))


def fire_trigger(session: SqlSession, rules: Rules, group: str) -> bool:
    """Fire the trigger of a group for everything that is free or leased, and request its flush."""
    now, row = lock(session, rules.name, group)
    if row is None or not row.free + row.leased:
        return False
    row.fire(max(items.last_number(session, row.group_digest, state) for state in (FREE, LEASED)), "requested")
    items.look_at_oldest(session, row)
    row.paused_until = 0
    row.flush_requested_until = now + rules.lease_ms
    save(session, rules, now, [row])
    return True


def remove_item(session: SqlSession, rules: Rules, group: str, id: str, states: Sequence[str]) -> None:
    """Remove the item with an id, if it is in one of these states."""
    now, row = lock(session, rules.name, group)
    if row is None:
        raise NothingBuffered(rules.name, group)
    number, state = items.item_of_key(session, digest(rules.name, group, id)) or (0, LEASED)
    if state not in states:
        raise ItemNotBuffered(rules.name, group, id, row.buffered)
    items.remove(session, rules, now, row, [number])
    if state == UNRESOLVED:
        row.unresolved -= 1
    else:
        row.free -= 1
        items.look_at_oldest(session, row)
    save(session, rules, now, [row])


def clear(session: SqlSession, rules: Rules, group: str) -> int:
    """Remove all items of a group, and give its leases up."""
    now, row = lock(session, rules.name, group)
    if row is None:
        return 0
    count = row.buffered
    for state in STATES:
        while numbers := items.numbers_in(session, row.group_digest, state):
            items.remove(session, rules, now, row, numbers)
    end_leases(session, row.group_digest)
    row.free = row.leased = row.unresolved = 0
    save(session, rules, now, [row])
    return count


def _names() -> Select[Any]:
    return select(aggregator.c.name).where(aggregator.c.prefix == PREFIX).order_by(aggregator.c.name)


def _groups(has_after: bool) -> Select[Any]:
    follow = [group.c.grp > bound(group.c.grp, "after")] if has_after else []
    return select(*_GROUP).where(*_are_of_name(), *follow).order_by(group.c.grp).limit(LIMIT)


def _count(has_group: bool) -> Select[Any]:
    """Add up what the rows of the groups say."""
    buffered = func.sum(group.c.free + group.c.leased + group.c.unresolved)
    columns: list[ColumnElement[Any]] = [func.count(), buffered, func.sum(group.c.unresolved)]
    return select(*columns).select_from(group).where(*_are_of_name(has_group))


def _are_of_name(has_group: bool = False) -> list[ColumnElement[bool]]:
    are = [group.c.prefix == PREFIX, group.c.aggregator == bound(group.c.aggregator, "name")]
    return [*are, group.c.grp == bound(group.c.grp, "grp")] if has_group else are
