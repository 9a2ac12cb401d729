"""Buffers in SQL, inspected and changed by hand."""

from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from celery_sagas.core.aggregators.rules import Rules
from celery_sagas.stores.aggregates import Buffers
from celery_sagas.stores.items import Counts, Group, Item
from celery_sagas.stores.sql.aggregators.groups import digest
from celery_sagas.stores.sql.aggregators.items import FREE, STATES, UNRESOLVED, first_items, select_unresolved
from celery_sagas.stores.sql.aggregators.removals import clear, fire_trigger, remove_item
from celery_sagas.stores.sql.connection.calls import in_transaction
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, bound
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
        return self._database.run(lambda session: first_items(session, group_digest, STATES, limit, after))

    def unresolved(self, name: str, limit: int, after: tuple[str, int] | None = None) -> list[tuple[str, Item]]:
        values: dict[str, object] = {"aggregator": name, "state": UNRESOLVED, "limit": limit}
        if after:
            values |= {"group_digest": digest(name, after[0]), "number": after[1]}
        return [(row[0], Item(*row[1:])) for row in self._database.fetch(select_unresolved, (after is not None,), values)]

    def fire(self, rules: Rules, group: str) -> bool:
        return in_transaction(self._database, lambda session: fire_trigger(session, rules, group))

    def remove(self, rules: Rules, group: str, id: str, *, unresolved: bool = False) -> None:
        states = (UNRESOLVED,) if unresolved else (FREE, UNRESOLVED)
        in_transaction(self._database, lambda session: remove_item(session, rules, group, id, states))

    def clear(self, rules: Rules, group: str) -> int:
        return in_transaction(self._database, lambda session: clear(session, rules, group))


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
