"""The row of a group: a transaction that has locked it has all of the group to itself, until it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, Delete, Insert, Select, Update, bindparam, delete, select, update

from celery_sagas.core.aggregators.rules import Rules, Waiting, due_at, reason_of
from celery_sagas.stores.items import DueGroup
from celery_sagas.stores.sql.connection.bulk import insert_given, insert_missing, lock_rows, or_change, put_rows
from celery_sagas.stores.sql.connection.database import Row, SqlSession
from celery_sagas.stores.sql.connection.statements import LIMIT, PREFIX, Values, any_of, bound, now
from celery_sagas.stores.sql.digests import digest
from celery_sagas.stores.sql.tables import aggregator, group, has_time


@dataclass(slots=True)
class GroupRow:
    """A row of ``saga_group``. Times are milliseconds since the epoch."""

    group_digest: str
    aggregator: str
    grp: str
    free: int = 0
    leased: int = 0
    unresolved: int = 0
    oldest: int = 0
    oldest_at: int = 0
    last_at: int = 0
    fired_to: int = 0
    fired_why: str = ""
    flush_requested_until: int = 0
    paused_until: int = 0
    lease_end: int = 0
    due_at: int = 0
    removals: int = 0

    @property
    def buffered(self) -> int:
        """The number of items in the group."""
        return self.free + self.leased + self.unresolved

    def reason(self, rules: Rules, now: int) -> str:
        """Return why the trigger has fired, or an empty text."""
        return reason_of(rules, self._waiting(), now)

    def request_flush(self, rules: Rules, now: int) -> bool:
        """Request a flush if the trigger has fired and none is requested; return whether it was."""
        if self.flush_requested_until > now or not self.reason(rules, now):
            return False
        self.flush_requested_until = now + rules.lease_ms
        return True

    def back(self, numbers: Sequence[int]) -> None:
        """Count items that are free again after they were unresolved or rejected, and make the group due for them."""
        self.free += len(numbers)
        self.fire(max(numbers), "again")
        self.flush_requested_until = 0

    def fire(self, to: int, why: str) -> None:
        """Fire the trigger for everything up to a number."""
        if to >= self.fired_to:
            self.fired_to, self.fired_why = to, why

    def settle(self, rules: Rules, now: int) -> None:
        """Set its due time."""
        ends = [self.lease_end] if self.lease_end else []
        self.due_at = due_at(rules, self._waiting(), now, self.flush_requested_until, ends) or 0

    def copy(self) -> GroupRow:
        """Return a copy."""
        return GroupRow(*_fields_of(self))

    def _waiting(self) -> Waiting:
        return Waiting(self.free, self.oldest, self.oldest_at, self.last_at, self.fired_to, self.fired_why)


_FIELDS = tuple(field.name for field in fields(GroupRow))
_fields_of = attrgetter(*_FIELDS)
_COLUMNS: list[ColumnElement[Any]] = [group.c[name] for name in _FIELDS]


def lock(session: SqlSession, name: str, of: str) -> tuple[int, GroupRow | None]:
    """Lock a group that has items; return the store's time, and its row, if there is one."""
    rows = session.fetch(_select_locked, (), {"group_digest": digest(name, of)})
    return (rows[0][0], GroupRow(*rows[0][1:])) if rows else (0, None)


def lock_all(session: SqlSession, name: str, groups: Collection[str]) -> tuple[int, dict[str, GroupRow]]:
    """Lock groups in the common order, whether they have items or not; return the store's time, and their rows.

    A single one that has items, as nearly always, is locked without being written.
    """
    if len(groups) == 1:
        (only,) = groups
        now, row = lock(session, name, only)
        if row is not None:
            return now, {only: row}
    empty = sorted((GroupRow(digest(name, each), name, each) for each in set(groups)), key=lambda row: row.group_digest)
    lock_rows(session, group, [_values(row) for row in empty])
    rows = session.fetch_any(_select_all, "group_digest", [row.group_digest for row in empty])
    return max(row[0] for row in rows), {row.grp: row for row in (GroupRow(*fields[1:]) for fields in rows)}


def save(session: SqlSession, rules: Rules, now: int, rows: Sequence[GroupRow]) -> None:
    """Finish a change of locked groups: save them with their due times, or delete those without items."""
    put_rows(session, group, settled(rules, now, rows))
    forget_empty(session, rows)


def settled(rules: Rules, now: int, rows: Sequence[GroupRow]) -> list[Values]:
    """Set the due times of groups; return the values of those that have items, in the common order of locking."""
    for row in rows:
        row.settle(rules, now)
    return [_values(row) for row in sorted(rows, key=lambda row: row.group_digest) if row.buffered]


def forget_empty(session: SqlSession, rows: Sequence[GroupRow]) -> None:
    """Delete the groups that have no items."""
    session.change_any(_delete, "group_digest", sorted(row.group_digest for row in rows if not row.buffered))


def put_groups(*where: ColumnElement[bool], is_one: bool) -> Insert:
    """Change one row, or any number, if the conditions hold, on PostgreSQL."""
    return or_change(insert_given(group, _FIELDS, (), *where, is_one=is_one), *_FIELDS)


def add_name(session: SqlSession, name: str) -> None:
    """Note that an aggregator has buffered something."""
    session.change(_insert_name, (session.database,), {"name": name})


def claim_due(session: SqlSession, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
    """Request the flushes of the groups that are due, the longest due first; two calls at once never get the same one."""
    rows: list[Row] = []
    for name in sorted(set(names)):
        rows += session.fetch(_due, (), {"name": name, "limit": limit})
    chosen = sorted(rows, key=tuple)[:limit]
    session.change_any(_request_flushes, "group_digest", sorted(row[-1] for row in chosen), {"lease_ms": lease_ms})
    return [DueGroup(name, grp) for _, name, grp, _ in chosen]


def _values(row: GroupRow) -> Values:
    return {name: getattr(row, name) for name in _FIELDS}


def _select_locked() -> Select[Any]:
    is_it = (group.c.prefix == PREFIX, group.c.group_digest == bound(group.c.group_digest, "group_digest"))
    return select(now(), *_COLUMNS).where(*is_it).with_for_update()


def _select_all(count: int) -> Select[Any]:
    return select(now(), *_COLUMNS).where(*_are(count))


def _delete(count: int) -> Delete:
    return delete(group).where(*_are(count))


def _are(count: int) -> list[ColumnElement[bool]]:
    """Conditions: the groups with these digests."""
    return [group.c.prefix == PREFIX, any_of(group.c.group_digest, "group_digest", count)]


def _insert_name(database: str) -> Insert:
    return insert_missing(aggregator, database, {"prefix": PREFIX, "name": bound(aggregator.c.name, "name")})


def _due() -> Select[Any]:
    """Select due groups of one aggregator: of several at once the database would sort all that are due.

    Groups that another transaction is changing are passed over: it leaves their due times right.
    """
    is_due = [group.c.due_at <= now(), has_time(group.c.due_at)]
    is_ours = [group.c.prefix == PREFIX, group.c.aggregator == bound(group.c.aggregator, "name")]
    columns = (group.c.due_at, group.c.aggregator, group.c.grp, group.c.group_digest)
    order = (group.c.due_at, group.c.grp)
    return select(*columns).where(*is_ours, *is_due).order_by(*order).limit(LIMIT).with_for_update(skip_locked=True)


def _request_flushes(count: int) -> Update:
    lease_ms: BindParameter[int] = bindparam("lease_ms", type_=BigInteger())
    return update(group).where(*_are(count)).values(flush_requested_until=now() + lease_ms, due_at=now() + lease_ms)
