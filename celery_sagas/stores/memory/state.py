"""The data of one backend in memory: dictionaries of encoded text under one lock."""

import threading
import time
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

from celery_sagas.stores.instances import place
from celery_sagas.stores.memory.buffers import MemoryGroups
from celery_sagas.stores.records import AuditEntry, DeadLetter, Entry, OutboxRow, Record
from celery_sagas.stores.switches import Switch

#: Returns the time in milliseconds since the epoch.
Clock = Callable[[], int]
#: A key or an alternate key: the stored name of the saga, the property (``KEY`` for the key itself) and the value.
KeyPath = tuple[str, str, str]
#: A property and its value.
_Tag: TypeAlias = tuple[str, str]
_Tags: TypeAlias = frozenset[_Tag]


class Instances:
    """Instances in views: a dictionary by id, and for each saga, and for each tag in it, a sorted list of their places."""

    def __init__(self) -> None:
        self._by_id: dict[str, Record] = {}
        self._tags: dict[str, _Tags] = {}
        self._places: defaultdict[tuple[str, _Tag | None], list[str]] = defaultdict(list)

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def __iter__(self) -> Iterator[Record]:
        return iter(self._by_id.values())

    def __getitem__(self, id: str) -> Record:
        return self._by_id[id]

    def get(self, id: str) -> Record | None:
        """Return an instance, or ``None``."""
        return self._by_id.get(id)

    def tags(self, id: str) -> _Tags:
        """Return the tags of an instance."""
        return self._tags[id]

    def put(self, record: Record, tags: _Tags) -> None:
        """Add an instance, or replace the one with the same id."""
        if record.id in self:
            self._forget_places(record.id)
        self._by_id[record.id], self._tags[record.id] = record, tags
        for path, position in _places_of(record, tags):
            insort(self._places[path], position)

    def remove(self, id: str) -> None:
        """Remove an instance that is there."""
        self._forget_places(id)
        del self._by_id[id], self._tags[id]

    def _forget_places(self, id: str) -> None:
        for path, position in _places_of(self._by_id[id], self._tags[id]):
            places = self._places[path]
            del places[bisect_left(places, position)]
            if not places:
                del self._places[path]

    def places(self, saga: str, tag: _Tag | None = None) -> Sequence[str]:
        """Return the places of a saga's instances, in order; or the ids of those that have a tag."""
        return self._places.get((saga, tag), ())


def _places_of(record: Record, tags: _Tags) -> Iterator[tuple[tuple[str, _Tag | None], str]]:
    yield (record.saga, None), place(record.updated_at, record.id)
    for tag in tags:
        yield (record.saga, tag), record.id


@dataclass(frozen=True, slots=True)
class Row:
    """An outgoing row and its lease."""

    message: OutboxRow
    due_since: int = 0  #: when its due time has come and its lease has ended
    token: str = ""  #: of the lease that is, or was last, on it
    leased_until: int = 0
    error: str = ""  #: why publishing it failed last
    position: int = 0  #: grows with each row that is added, so that rows of one time stay in their order


class Rows:
    """Rows in two views: a dictionary by id, and a sorted list that is read from its due end."""

    def __init__(self) -> None:
        self._by_id: dict[str, Row] = {}
        self._by_time: list[tuple[int, int, str]] = []
        self._positions = count()

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._by_id.values())

    def get(self, id: str) -> Row | None:
        """Return a row, or ``None``."""
        return self._by_id.get(id)

    def add(self, row: Row) -> None:
        """Add a row behind all rows that fall due at the same time."""
        self.put(replace(row, position=next(self._positions)))

    def put(self, row: Row) -> None:
        """Replace the row with the same id."""
        self.remove(row.message.id)
        self._by_id[row.message.id] = row
        insort(self._by_time, _order_of(row))

    def remove(self, id: str) -> None:
        """Remove a row, if it is there."""
        row = self._by_id.pop(id, None)
        if row is not None:
            del self._by_time[bisect_left(self._by_time, _order_of(row))]

    def remove_of_instance(self, instance_id: str, id: str) -> None:
        """Remove a row, if it is there and this instance has decided it."""
        row = self._by_id.get(id)
        if row is not None and row.message.instance_id == instance_id:
            self.remove(id)

    def held(self, id: str, token: str) -> Row | None:
        """Return the row if its lease is, or was last, this token's."""
        row = self._by_id.get(id)
        return row if row is not None and row.token == token else None

    def due(self, now: int) -> Iterator[Row]:
        """Yield the rows that are due, the longest due first; rows that are not due cost nothing."""
        for due_since, _, id in self._by_time:
            if due_since > now:
                return
            yield self._by_id[id]

    def next_due(self) -> int | None:
        """Return when the first row is, or was, due."""
        return self._by_time[0][0] if self._by_time else None

    def leased(self, now: int) -> list[Row]:
        """Return the rows that are under a lease."""
        return [row for row in self._by_id.values() if row.leased_until > now]

    def of_instance(self, instance_id: str) -> list[Row]:
        """Return the rows that an instance has decided."""
        return [row for row in self._by_id.values() if row.message.instance_id == instance_id]


def new_row(message: OutboxRow, owner: str, until: int) -> Row:
    """Return the row of a message that is committed: under its first lease, unless it waits for its due time."""
    return Row(message, message.due_at) if message.due_at else leased(Row(message), owner, until)


def leased(row: Row, token: str, until: int) -> Row:
    """Return a row under a lease."""
    return replace(row, due_since=until, token=token, leased_until=until)


def unleased(row: Row, due_since: int) -> Row:
    """Return a row whose lease has ended."""
    return replace(row, due_since=due_since, leased_until=0)


def _order_of(row: Row) -> tuple[int, int, str]:
    return row.due_since, row.position, row.message.id


@dataclass(slots=True)
class MemoryState:
    """Everything that is stored under one prefix; its readers and writers hold the lock."""

    lock: AbstractContextManager[object] = field(default_factory=threading.Lock)
    instances: Instances = field(default_factory=Instances)
    keys: dict[KeyPath, str] = field(default_factory=dict)  #: the id of the instance that holds a key
    locks: dict[str, tuple[str, int]] = field(default_factory=dict)  #: owner and end of a lock, by the instance's id
    journal: dict[tuple[str, str], Entry] = field(default_factory=dict)  #: by (step, message id)
    audit: dict[str, AuditEntry] = field(default_factory=dict)  #: by id
    switches: dict[str, Switch] = field(default_factory=dict)  #: by name
    outbox: Rows = field(default_factory=Rows)
    deliveries: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  #: count and time, by (step, message id)
    dead_letters: dict[str, DeadLetter] = field(default_factory=dict)  #: by id
    buffers: MemoryGroups = field(default_factory=MemoryGroups)
    app: str = ""  #: the name that was noted last

    def locked_by(self, id: str, now: int) -> str:
        """Return the owner of a lock that lasts, or an empty text."""
        lock_owner, until = self.locks.get(id, ("", 0))
        return lock_owner if until > now else ""


class MemoryStore:
    """A store over a state.

    Args:
        state: Shared by the stores of a backend.
        clock: Returns the time.
    """

    def __init__(self, state: MemoryState, clock: Clock) -> None:
        self._state = state
        self._clock = clock


def wall_clock() -> int:
    """Return this machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
