"""The buffers of one backend in memory; their readers and writers hold the lock."""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from celery_sagas.core.aggregators.rules import Rules, Waiting, due_at, reason_of
from celery_sagas.stores.items import Item, ItemState, NewItem

#: An aggregator and a group.
GroupId = tuple[str, str]


@dataclass(slots=True)
class MemoryLease:
    """The items of one run of a flush."""

    until: int
    numbers: tuple[int, ...]
    reason: str


@dataclass(slots=True)
class Buffer:
    """One group. Each item stands in ``items``; its number also in one of the views."""

    items: dict[int, Item] = field(default_factory=dict)  #: by number
    free: list[int] = field(default_factory=list)  #: sorted
    leases: dict[str, MemoryLease] = field(default_factory=dict)  #: by token
    unresolved: set[int] = field(default_factory=set)  #: numbers
    ids: dict[str, int] = field(default_factory=dict)
    last_at: int = 0
    fired_to: int = 0
    fired_why: str = ""
    flush_requested_until: int = 0
    paused_until: int = 0  #: before that, no claim takes items
    due: int | None = None  #: when it must be checked

    def waiting(self) -> Waiting:
        """Return the group as its trigger sees it."""
        oldest = self.free[0] if self.free else 0
        oldest_at = self.items[oldest].at if self.free else 0
        return Waiting(len(self.free), oldest, oldest_at, self.last_at, self.fired_to, self.fired_why)

    def reason(self, rules: Rules, now: int) -> str:
        """Return why the trigger has fired, or an empty text."""
        return reason_of(rules, self.waiting(), now)

    def request_flush(self, rules: Rules, now: int) -> bool:
        """Request a flush if the trigger has fired and none is requested; return whether it was."""
        if self.flush_requested_until > now or not self.reason(rules, now):
            return False
        self.flush_requested_until = now + rules.lease_ms
        return True

    def fire(self, to: int, why: str) -> None:
        """Fire the trigger for everything up to a number."""
        if to >= self.fired_to:
            self.fired_to, self.fired_why = to, why

    def add(self, number: int, new: NewItem, now: int) -> None:
        """Add an item."""
        self.items[number] = Item(number, new.id, new.payload, now)
        self.ids[new.id] = number
        if new.is_unreadable:
            self.unresolved.add(number)
        else:
            self.free.append(number)
            self.last_at = now

    def free_again(self, numbers: Iterable[int], attempts: int) -> None:
        """Put items back where they stood, and fire the trigger for them."""
        for number in numbers:
            item = self.items[number]
            self.items[number] = item._replace(attempts=item.attempts + attempts)
            insort(self.free, number)
            self.fire(number, "again")

    def drop(self, number: int) -> Item:
        """Remove an item from the buffer."""
        item = self.items.pop(number)
        del self.ids[item.id]
        self.unresolved.discard(number)
        return item

    def end_expired_leases(self, now: int) -> None:
        """Free the items whose lease has ended, with one attempt more."""
        for token in [token for token, lease in self.leases.items() if lease.until <= now]:
            self.free_again(self.leases.pop(token).numbers, attempts=1)

    def shown(self, number: int) -> Item:
        """Return an item with its state."""
        leased = any(number in lease.numbers for lease in self.leases.values())
        state: ItemState = "unresolved" if number in self.unresolved else "leased" if leased else "free"
        return self.items[number]._replace(state=state)


@dataclass(slots=True)
class MemoryGroups:
    """All groups of all aggregators."""

    groups: dict[GroupId, Buffer] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    seen: dict[tuple[str, str, str], int] = field(default_factory=dict)  #: aggregator, group and id → until when it is known
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  #: of items: none is used again

    def settle(self, group_id: GroupId, rules: Rules, now: int) -> None:
        """Finish a change of a group: set its due time, or remove it if it is empty."""
        buffer = self.groups[group_id]
        if buffer.items:
            ends = [lease.until for lease in buffer.leases.values()]
            buffer.due = due_at(rules, buffer.waiting(), now, buffer.flush_requested_until, ends)
        else:
            del self.groups[group_id]

    def remember(self, group_id: GroupId, id: str, rules: Rules, now: int) -> None:
        """Remember the id of an item that was removed."""
        if rules.remember_ms:
            self.seen[(*group_id, id)] = now + rules.remember_ms
