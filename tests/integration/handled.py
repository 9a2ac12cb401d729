"""How many messages a step has handled, counted in the journal itself: no port tells."""

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from sqlalchemy import Executable, text

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.scripts import Script
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import unpack_entry

Handled = Callable[[str], int]

_BATCH = 1_000
_SOURCE = """
local digests = redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
return #digests > 0 and redis.call('HMGET', KEYS[2], unpack(digests)) or digests
"""
_ENTRIES = Script("entries", _SOURCE, hashlib.sha1(_SOURCE.encode(), usedforsecurity=False).hexdigest())


def counting(backend: Backend, prefix: str) -> Handled:
    """Return what counts a backend's entries of a step."""
    return _RedisJournals(backend) if isinstance(backend, RedisBackend) else lambda step: _count_in_sql(backend, prefix, step)


def _count_in_sql(backend: Any, prefix: str, step: str) -> int:
    """Count on a connection that stays open: who waits counts often."""
    ((count,),) = backend.database.fetch(_entries_of_step, (), {"prefix": prefix, "step": step})
    return int(count)


def _entries_of_step() -> Executable:
    return text("SELECT count(*) FROM saga_journal WHERE prefix = :prefix AND step = :step")


class _RedisJournals:
    """The journals in Redis: each entry is read once, unless a connection is lost.

    An entry never changes. But a fail-over takes back what the new master had not got, and others come in its place.
    """

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self._begin()

    def __call__(self, step: str) -> int:
        self._read_on()
        while self._losses != self._backend.client.losses:
            self._begin()
            self._read_on()
        return self._counted[step]

    def _begin(self) -> None:
        self._losses = self._backend.client.losses
        self._read = dict.fromkeys(self._backend._placement.shards, 0)
        self._counted: Counter[str] = Counter()

    def _read_on(self) -> None:
        for shard in self._read:
            while entries := self._next(shard):
                self._read[shard] += len(entries)
                self._counted.update(unpack_entry(entry).step for entry in entries)

    def _next(self, shard: Shard) -> list[bytes]:
        read: list[bytes] = self._backend.client.run(_ENTRIES, [shard.order, shard.journal], [self._read[shard], _BATCH])
        return read
