"""The data of one backend in memory: dictionaries of encoded text under one lock."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from celery_sagas.stores.memory.buffers import MemoryGroups
from celery_sagas.stores.memory.rows import Rows
from celery_sagas.stores.records import DeadLetter, Entry, Record

#: Returns the time in milliseconds since the epoch.
Clock = Callable[[], int]
#: A key or an alternate key: the stored name of the saga, the property (``KEY`` for the key itself) and the value.
KeyPath = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class InstanceLock:
    """A lock on an instance: its owner, and when it ends."""

    lock_owner: str
    until: int


@dataclass(slots=True)
class MemoryState:
    """Everything that is stored under one prefix; its readers and writers hold the lock."""

    lock: AbstractContextManager[object] = field(default_factory=threading.Lock)
    instances: dict[str, Record] = field(default_factory=dict)  #: by id
    keys: dict[KeyPath, str] = field(default_factory=dict)  #: the id of the instance that holds a key
    locks: dict[str, InstanceLock] = field(default_factory=dict)  #: by the instance's id
    journal: dict[tuple[str, str], Entry] = field(default_factory=dict)  #: by (step, message id)
    outbox: Rows = field(default_factory=Rows)
    deliveries: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  #: count and time, by (step, message id)
    dead_letters: dict[str, DeadLetter] = field(default_factory=dict)  #: by id
    buffers: MemoryGroups = field(default_factory=MemoryGroups)
    app: str = ""  #: the name that was noted last

    def locked_by(self, id: str, now: int) -> str:
        """Return the owner of a lock that lasts, or an empty text."""
        lock = self.locks.get(id)
        return lock.lock_owner if lock and lock.until > now else ""


def wall_clock() -> int:
    """Return this machine's time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
