"""Aggregators in memory."""

from collections.abc import Collection, Sequence
from heapq import nsmallest
from itertools import islice

from celery_sagas.core.aggregators.rules import taken
from celery_sagas.errors import ItemNotBuffered, LeaseLost, NothingBuffered
from celery_sagas.stores.aggregates import AggregateStore, Buffers
from celery_sagas.stores.items import Added, Addition, Counts, DueGroup, Group, Item, NewItem, Rules, Snapshot
from celery_sagas.stores.memory.buffers import Buffer, GroupId, MemoryLease
from celery_sagas.stores.memory.dead_letters import keep
from celery_sagas.stores.memory.state import Clock, MemoryState, MemoryStore, new_row
from celery_sagas.stores.records import DeadLetter, Sends, outbox_row


class _OfGroups(MemoryStore):
    """The base of the stores that read and change groups."""

    def __init__(self, state: MemoryState, clock: Clock) -> None:
        super().__init__(state, clock)
        self._buffers = state.buffers


class MemoryAggregateStore(_OfGroups, AggregateStore):
    """Groups in dictionaries."""

    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        with self._state.lock:
            return [self._insert(rules, addition, self._clock()) for addition in additions]

    def _insert(self, rules: Rules, addition: Addition, now: int) -> Added:
        group_id = rules.name, addition.group
        buffer = self._buffers.groups.get(group_id, Buffer())
        new = self._new(group_id, buffer, addition, now)
        if new and rules.max_buffered and len(buffer.items) + len(new) > rules.max_buffered:
            return Added(0, is_full=True)
        for item in new:
            buffer.add(next(self._buffers.numbers), item, now)
            self._buffers.names.add(rules.name)
        if not buffer.items:
            return Added(0)
        needs_flush = buffer.request_flush(rules, now)
        self._buffers.groups[group_id] = buffer
        self._buffers.settle(group_id, rules, now)
        return Added(len(new), needs_flush)

    def _new(self, group_id: GroupId, buffer: Buffer, addition: Addition, now: int) -> list[NewItem]:
        first: dict[str, NewItem] = {}
        for item in addition.items:
            if item.id not in buffer.ids and self._buffers.seen.get((*group_id, item.id), 0) <= now:
                first.setdefault(item.id, item)
        return list(first.values())

    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        with self._state.lock:
            group_id, now = (rules.name, group), self._clock()
            buffer = self._buffers.groups.get(group_id)
            if buffer is None:
                return None
            lease = buffer.leases.get(token)
            if lease is None and buffer.paused_until > now:
                return None
            if lease is None:
                lease = _lease(buffer, rules, token, now)
                self._buffers.settle(group_id, rules, now)
            if lease is None:
                return None
            items = tuple(buffer.items[number] for number in lease.numbers)
            return Snapshot(items, lease.reason, len(buffer.unresolved), buffer.flush_requested_until > now)

    def renew(self, rules: Rules, group: str, token: str) -> bool:
        with self._state.lock:
            group_id, now = (rules.name, group), self._clock()
            buffer = self._buffers.groups.get(group_id)
            if buffer is None or token not in buffer.leases:
                return False
            buffer.leases[token].until = now + rules.lease_ms
            self._buffers.settle(group_id, rules, now)
            return True

    def remove(
        self,
        rules: Rules,
        group: str,
        token: str,
        *,
        rejected: Sequence[DeadLetter] = (),
        unreadable: Collection[int] = (),
        sends: Sends | None = None,
    ) -> bool:
        with self._state.lock:
            group_id, now = (rules.name, group), self._clock()
            buffer, numbers = self._end(group_id, token, unreadable)
            self._remove(group_id, rules, numbers, rejected, now)
            if sends is not None:
                self._send(sends, now)
            needs_flush = buffer.request_flush(rules, now)
            self._buffers.settle(group_id, rules, now)
            return needs_flush

    def release(
        self,
        rules: Rules,
        group: str,
        token: str,
        *,
        rejected: Sequence[DeadLetter] = (),
        unreadable: Collection[int] = (),
        counted: bool = True,
        delay_ms: int = 0,
    ) -> None:
        with self._state.lock:
            group_id, now = (rules.name, group), self._clock()
            buffer, numbers = self._end(group_id, token, unreadable)
            gone = numbers & {dead_letter.number for dead_letter in rejected}
            buffer.free_again(numbers - gone, attempts=int(counted))
            self._remove(group_id, rules, gone, rejected, now)
            buffer.paused_until = max(buffer.paused_until, now + delay_ms)
            buffer.flush_requested_until = max(buffer.flush_requested_until, now + delay_ms + rules.lease_ms)
            self._buffers.settle(group_id, rules, now)

    def _end(self, group_id: GroupId, token: str, unreadable: Collection[int]) -> tuple[Buffer, set[int]]:
        """End a lease; return the numbers of its items that can be read."""
        buffer = self._buffers.groups.get(group_id)
        if buffer is None or token not in buffer.leases:
            raise LeaseLost(*group_id, token)
        numbers = set(buffer.leases.pop(token).numbers)
        buffer.unresolved |= numbers.intersection(unreadable)
        return buffer, numbers.difference(unreadable)

    def _remove(self, group_id: GroupId, rules: Rules, numbers: set[int], rejected: Sequence[DeadLetter], now: int) -> None:
        for dead_letter in rejected:
            if dead_letter.number in numbers:
                keep(self._state, dead_letter, now)
        for number in numbers:
            self._buffers.remember(group_id, self._buffers.groups[group_id].drop(number).id, rules, now)

    def _send(self, sends: Sends, now: int) -> None:
        for outgoing in sends.outgoing:
            message = outbox_row(outgoing, "", sends.step, sends.cause)
            self._state.outbox.add(new_row(message, sends.owner, now + sends.grace_ms))

    def resolve(self, rules: Rules, group: str, numbers: Collection[int]) -> int:
        with self._state.lock:
            group_id = rules.name, group
            buffer = self._buffers.groups.get(group_id, Buffer())
            found = buffer.unresolved.intersection(numbers)
            if found:
                self._free_as_new(group_id, rules, found)
            return len(found)

    def restore(self, rules: Rules, dead_letter: DeadLetter) -> bool:
        with self._state.lock:
            group_id = rules.name, dead_letter.key
            buffer = self._buffers.groups.get(group_id, Buffer())
            if dead_letter.id not in self._state.dead_letters or dead_letter.message_id in buffer.ids:
                return False
            del self._state.dead_letters[dead_letter.id]
            self._buffers.groups[group_id] = buffer
            buffer.items[dead_letter.number] = Item(
                dead_letter.number, dead_letter.message_id, dead_letter.payload, dead_letter.buffered_at
            )
            buffer.ids[dead_letter.message_id] = dead_letter.number
            self._free_as_new(group_id, rules, {dead_letter.number})
            return True

    def _free_as_new(self, group_id: GroupId, rules: Rules, numbers: set[int]) -> None:
        """Free items that were under no lease, and make their group due."""
        buffer = self._buffers.groups[group_id]
        buffer.unresolved -= numbers
        for number in numbers:
            buffer.items[number] = buffer.items[number]._replace(attempts=0)
        buffer.free_again(numbers, attempts=0)
        buffer.flush_requested_until = 0
        self._buffers.settle(group_id, rules, self._clock())

    def claim_due(self, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
        with self._state.lock:
            now = self._clock()
            due = [
                (buffer.due, group_id)
                for group_id, buffer in self._buffers.groups.items()
                if group_id[0] in names and buffer.due is not None and buffer.due <= now
            ]
            group_ids = [group_id for _, group_id in sorted(due)[:limit]]
            for group_id in group_ids:
                buffer = self._buffers.groups[group_id]
                buffer.flush_requested_until = buffer.due = now + lease_ms
            return [DueGroup(*group_id) for group_id in group_ids]

    def purge(self, limit: int) -> int:
        with self._state.lock:
            now = self._clock()
            old = list(islice((id for id, until in self._buffers.seen.items() if until <= now), limit))
            for id in old:
                del self._buffers.seen[id]
            return len(old)


class MemoryBuffers(_OfGroups, Buffers):
    """A view of the same dictionaries."""

    def names(self) -> list[str]:
        with self._state.lock:
            return sorted(self._buffers.names)

    def count(self, name: str, group: str | None = None) -> Counts:
        with self._state.lock:
            groups = [
                buffer
                for group_id, buffer in self._buffers.groups.items()
                if group_id[0] == name and group in (None, group_id[1])
            ]
            buffered, unresolved = sum(len(each.items) for each in groups), sum(len(each.unresolved) for each in groups)
            return Counts(len(groups), buffered, unresolved)

    def groups(self, name: str, limit: int, after: str = "") -> list[Group]:
        with self._state.lock:
            named = {group_id[1]: buffer for group_id, buffer in self._buffers.groups.items() if group_id[0] == name}
            first = sorted(group for group in named if not after or group > after)[:limit]
            return [_shown(group, named[group]) for group in first]

    def read(self, name: str, group: str, limit: int, after: int = 0) -> list[Item]:
        with self._state.lock:
            buffer = self._buffers.groups.get((name, group), Buffer())
            first = nsmallest(limit, (number for number in buffer.items if number > after))
            return [buffer.shown(number) for number in first]

    def unresolved(self, name: str, limit: int, after: tuple[str, int] | None = None) -> list[tuple[str, Item]]:
        with self._state.lock:
            groups = {group_id[1]: buffer for group_id, buffer in self._buffers.groups.items() if group_id[0] == name}
            numbers = sorted((group, number) for group, buffer in groups.items() for number in buffer.unresolved)
            first = [each for each in numbers if after is None or each > after][:limit]
            return [(group, groups[group].shown(number)) for group, number in first]

    def fire(self, rules: Rules, group: str) -> bool:
        with self._state.lock:
            group_id, now = (rules.name, group), self._clock()
            buffer = self._buffers.groups.get(group_id)
            numbers = buffer.items.keys() - buffer.unresolved if buffer else ()
            if buffer is None or not numbers:
                return False
            buffer.fire(max(numbers), "requested")
            buffer.paused_until = 0
            buffer.flush_requested_until = now + rules.lease_ms
            self._buffers.settle(group_id, rules, now)
            return True

    def remove(self, rules: Rules, group: str, id: str, *, unresolved: bool = False) -> None:
        with self._state.lock:
            group_id = rules.name, group
            buffer = self._buffers.groups.get(group_id)
            if buffer is None:
                raise NothingBuffered(*group_id)
            number = buffer.ids.get(id)
            if number is None or (number not in buffer.unresolved if unresolved else buffer.shown(number).state == "leased"):
                raise ItemNotBuffered(*group_id, id, len(buffer.items))
            self._remove(group_id, rules, [number])

    def clear(self, rules: Rules, group: str) -> int:
        with self._state.lock:
            group_id = rules.name, group
            buffer = self._buffers.groups.get(group_id)
            if buffer is None:
                return 0
            buffer.leases.clear()
            numbers = list(buffer.items)
            self._remove(group_id, rules, numbers)
            return len(numbers)

    def _remove(self, group_id: GroupId, rules: Rules, numbers: Sequence[int]) -> None:
        buffer, now = self._buffers.groups[group_id], self._clock()
        for number in numbers:
            if number in buffer.free:
                buffer.free.remove(number)
            self._buffers.remember(group_id, buffer.drop(number).id, rules, now)
        self._buffers.settle(group_id, rules, now)


def _lease(buffer: Buffer, rules: Rules, token: str, now: int) -> MemoryLease | None:
    buffer.end_expired_leases(now)
    buffer.flush_requested_until = 0
    reason = buffer.reason(rules, now)
    if not reason:
        return None
    if reason in ("age", "idle"):
        buffer.fire(buffer.free[-1], reason)
    count = taken(rules, [buffer.items[number].attempts for number in buffer.free])
    lease = buffer.leases[token] = MemoryLease(now + rules.lease_ms, tuple(buffer.free[:count]), reason)
    del buffer.free[:count]
    buffer.request_flush(rules, now)
    return lease


def _shown(group: str, buffer: Buffer) -> Group:
    leased = sum(len(lease.numbers) for lease in buffer.leases.values())
    return Group(group, len(buffer.free), leased, len(buffer.unresolved), buffer.due or 0)
