"""The operations of a flush on its items: it claims them under a lease, and ends the lease in one way or another."""

from collections.abc import Collection, Sequence

from celery_sagas.core.aggregators.rules import Rules, taken
from celery_sagas.errors import LeaseLost
from celery_sagas.stores.items import Item, Snapshot
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.sql.aggregators import items
from celery_sagas.stores.sql.aggregators.groups import GroupRow, lock, save
from celery_sagas.stores.sql.aggregators.items import FREE, look_at_oldest
from celery_sagas.stores.sql.aggregators.leases import LeaseRow, add_lease, end_lease, extend_lease, first_end, read_leases
from celery_sagas.stores.sql.connection.database import SqlSession
from celery_sagas.stores.sql.dead_letters import keep


class Flushes:
    """The flushes of one group, which is locked until the transaction ends."""

    def __init__(self, session: SqlSession, rules: Rules, group: str) -> None:
        self._session = session
        self._rules = rules
        self._group = group
        self._now, row = lock(session, rules.name, group)
        self._row = row or GroupRow("", rules.name, group)
        self._leases = read_leases(session, self._row)

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
        add_lease(self._session, row.group_digest, lease)
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
        extend_lease(self._session, self._row.group_digest, token, ends_at)
        self._leases[token] = self._leases[token]._replace(ends_at=ends_at)
        self._save()
        return True

    def remove(self, token: str, rejected: Sequence[DeadLetter], unreadable: Collection[int]) -> bool:
        """End a lease, and remove its items; return whether the caller must ask for a flush."""
        self._remove(self._end(token, unreadable), rejected)
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
            items.free_anew(self._session, found)
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
        end_lease(self._session, self._row.group_digest, token)
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
        self._row.lease_end = first_end(self._leases.values())
        save(self._session, self._rules, self._now, [self._row])


def _first_of(rest: Sequence[Item]) -> tuple[int, int]:
    return (rest[0].number, rest[0].at) if rest else (0, 0)
