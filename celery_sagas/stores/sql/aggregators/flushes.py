"""The operations of a flush on its items: it claims them under a lease, and ends the lease in one way or another.

Leases are in the table ``saga_lease``.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Delete, Insert, Select, Update, delete, insert, select, update

from celery_sagas.core.aggregators.rules import Rules, taken
from celery_sagas.errors import LeaseLost
from celery_sagas.stores.items import Item, Snapshot
from celery_sagas.stores.records import DeadLetter, Sends
from celery_sagas.stores.sql.aggregators import items
from celery_sagas.stores.sql.aggregators.groups import GroupRow, lock, save
from celery_sagas.stores.sql.aggregators.items import FREE, look_at_oldest
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.connection.statements import PREFIX, bound
from celery_sagas.stores.sql.dead_letters import keep
from celery_sagas.stores.sql.sagas.effects import send_steps
from celery_sagas.stores.sql.tables import lease as table


class LeaseRow(NamedTuple):
    """The time that one run of a flush has, and the reason for the flush."""

    token: str
    reason: str
    ends_at: int


class Flushes:
    """The flushes of one group, which is locked until the transaction ends."""

    def __init__(self, session: SqlSession, rules: Rules, group: str) -> None:
        self._session = session
        self._rules = rules
        self._group = group
        self._now, row = lock(session, rules.name, group)
        self._row = row or GroupRow("", rules.name, group)
        self._leases = self._read_leases()

    def _read_leases(self) -> dict[str, LeaseRow]:
        if not self._row.leased:
            return {}
        rows = self._session.fetch(_select_leases, (self._session.database,), {"group_digest": self._row.group_digest})
        return {row[0]: LeaseRow(*row) for row in rows}

    def claim(self, token: str) -> Snapshot | None:
        """Lease the first free items to a token, if the trigger has fired; a token that has a lease is given the same again."""
        if not self._row.buffered:
            return None
        if token in self._leases:
            return self._snapshot(items.leased_items(self._session, self._row.group_digest, token), self._leases[token])
        if self._row.paused_until > self._now:
            return None
        self._end_expired_leases()
        self._row.flush_requested_until = 0
        reason = self._row.reason(self._rules, self._now)
        snapshot = self._lease(token, reason) if reason else None
        self._save()
        return snapshot

    def _end_expired_leases(self) -> None:
        for lease in [lease for lease in self._leases.values() if lease.ends_at <= self._now]:
            self._free(self._end(lease.token), attempts=1)

    def _lease(self, token: str, reason: str) -> Snapshot:
        row, limit = self._row, self._rules.limit
        if reason in ("age", "idle"):
            row.fire(items.last_number(self._session, row.group_digest, FREE), reason)
        first = items.first_items(self._session, row.group_digest, [FREE], limit + 1)
        count = taken(self._rules, [item.attempts for item in first])
        leased, (row.oldest, row.oldest_at) = first[:count], _first_of(first[count:])
        lease = self._leases[token] = LeaseRow(token, reason, self._now + self._rules.lease_ms)
        items.lease(self._session, [item.number for item in leased], token)
        self._session.change(_insert_lease, (), {"group_digest": row.group_digest, **lease._asdict()})
        row.free -= count
        row.leased += count
        row.request_flush(self._rules, self._now)
        return self._snapshot(leased, lease)

    def _snapshot(self, leased: Sequence[Item], lease: LeaseRow) -> Snapshot:
        as_free = tuple(item._replace(state="free") for item in leased)
        return Snapshot(as_free, lease.reason, self._row.unresolved, self._row.flush_requested_until > self._now)

    def renew(self, token: str) -> bool:
        """Restart the time of a lease, if it exists."""
        if token not in self._leases:
            return False
        ends_at = self._now + self._rules.lease_ms
        values = {"group_digest": self._row.group_digest, "token": token, "ends_at": ends_at}
        self._session.change(_extend_lease, (), values)
        self._leases[token] = self._leases[token]._replace(ends_at=ends_at)
        self._save()
        return True

    def remove(self, token: str, rejected: Sequence[DeadLetter], unreadable: Collection[int], sends: Sends | None) -> bool:
        """End a lease, and remove its items; return whether the caller must ask for a flush."""
        self._remove(self._end(token, unreadable), rejected)
        for step in send_steps(sends) if sends else ():
            self._session.change(step.build, step.shape, step.values)
        needs_flush = self._row.request_flush(self._rules, self._now)
        self._save()
        return needs_flush

    def release(
        self, token: str, rejected: Sequence[DeadLetter], unreadable: Collection[int], *, attempts: int, delay_ms: int
    ) -> None:
        """End a lease, and free its items."""
        numbers, gone = self._end(token, unreadable), {dead_letter.number for dead_letter in rejected}
        self._remove([number for number in numbers if number in gone], rejected)
        self._free([number for number in numbers if number not in gone], attempts)
        self._row.paused_until = max(self._row.paused_until, self._now + delay_ms)
        self._row.flush_requested_until = max(self._row.flush_requested_until, self._now + delay_ms + self._rules.lease_ms)
        self._save()

    def resolve(self, numbers: Collection[int]) -> int:
        """Free unresolved items as if they had never been tried; return how many of them there were."""
        found = items.unresolved_among(self._session, self._row.group_digest, numbers)
        if found:
            items.free_as_new(self._session, found)
            self._row.unresolved -= len(found)
            self._row.back(found)
            look_at_oldest(self._session, self._row)
            self._save()
        return len(found)

    def _end(self, token: str, unreadable: Collection[int] = ()) -> list[int]:
        """End a lease; return the numbers of its items that can be read."""
        if self._leases.pop(token, None) is None:
            raise LeaseLost(self._rules.name, self._group, token)
        numbers = items.leased_numbers(self._session, self._row.group_digest, token)
        self._session.change(_delete_lease, (), {"group_digest": self._row.group_digest, "token": token})
        self._row.leased -= len(numbers)
        unresolved = [number for number in numbers if number in unreadable]
        items.set_unresolved(self._session, unresolved)
        self._row.unresolved += len(unresolved)
        return [number for number in numbers if number not in unreadable]

    def _remove(self, numbers: Sequence[int], rejected: Sequence[DeadLetter]) -> None:
        gone = set(numbers)
        keep(self._session, self._now, [dead_letter for dead_letter in rejected if dead_letter.number in gone])
        items.remove(self._session, self._rules, self._now, self._row, numbers)

    def _free(self, numbers: Sequence[int], attempts: int) -> None:
        if numbers:
            items.free(self._session, numbers, attempts)
            self._row.free += len(numbers)
            self._row.fire(max(numbers), "again")
            look_at_oldest(self._session, self._row)

    def _save(self) -> None:
        self._row.lease_end = min((lease.ends_at for lease in self._leases.values()), default=0)
        save(self._session, self._rules, self._now, [self._row])


def _first_of(rest: Sequence[Item]) -> tuple[int, int]:
    return (rest[0].number, rest[0].at) if rest else (0, 0)


def end_leases(session: SqlSession, group_digest: str) -> None:
    """Remove all leases of a group, which the caller has locked."""
    session.change(_delete_leases, (), {"group_digest": group_digest})


def _select_leases(database: str) -> Select[Any]:
    """Select the leases of a locked group; on MySQL as they are now, and not as a shared transaction has seen them before."""
    leases = select(table.c.token, table.c.reason, table.c.ends_at).where(*_are_of_group())
    return leases.with_for_update() if database == "mysql" else leases


def _insert_lease() -> Insert:
    given = {name: bound(table.c[name], name) for name in ("group_digest", *LeaseRow._fields)}
    return insert(table).values({"prefix": PREFIX, **given})


def _extend_lease() -> Update:
    return update(table).where(*_is_lease()).values(ends_at=bound(table.c.ends_at, "ends_at"))


def _delete_lease() -> Delete:
    return delete(table).where(*_is_lease())


def _delete_leases() -> Delete:
    return delete(table).where(*_are_of_group())


def _is_lease() -> list[ColumnElement[bool]]:
    return [*_are_of_group(), table.c.token == bound(table.c.token, "token")]


def _are_of_group() -> list[ColumnElement[bool]]:
    return [table.c.prefix == PREFIX, table.c.group_digest == bound(table.c.group_digest, "group_digest")]
