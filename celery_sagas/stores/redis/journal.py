"""The journal in Redis."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from celery_sagas.stores.journal import Journal
from celery_sagas.stores.recent import LOOKED_AT
from celery_sagas.stores.records import Entries, Entry, has_begun
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import encode, subject_of, unpack_entry, unreadable
from celery_sagas.stores.redis.recent import items_of, merged, place_behind, read_positions
from celery_sagas.stores.redis.store import RedisStore

#: How many entries one script reads.
_READ_AT_ONCE: Final = 100
#: How many entries one script looks at.
_LOOKED_AT_AT_ONCE: Final = 500
#: The most entries that one script removes.
_PURGED_AT_ONCE: Final = 200

_BEGAN: Final = load("journal_began")
_HISTORY: Final = load("journal_history")
_OLDEST: Final = load("journal_oldest")
_OUTCOME_OF: Final = load("journal_outcome_of")
_PURGE: Final = load("journal_purge")
_RECENT: Final = load("journal_recent")


class RedisJournal(RedisStore, Journal):
    """Entries in one hash for each shard, in a list in the order of their commits, and chained for each key."""

    def outcome_of(self, names: Sequence[str], key: str) -> Entry | None:
        subjects = [encode(subject_of(name, key)) for name in names]
        entries = [
            _unpack(shard, names[0], key, packed)
            for shard in self._placement.of_key(names, key)
            for packed in self._client.run(_OUTCOME_OF, [shard.journal, shard.completed], subjects)
        ]
        return max(entries, key=_age, default=None)

    def history(self, names: Sequence[str], key: str, limit: int) -> list[Entry]:
        entries: list[Entry] = []
        for shard in self._placement.of_key(names, key):
            for name in names:
                entries += self._newest(shard, name, key, limit)
        entries.sort(key=_age)
        return entries[max(0, len(entries) - limit) :]

    def began(self, names: Sequence[str], within_ms: int, limit: int) -> list[str]:
        entries: list[Entry] = []
        for shard in self._placement.in_turn():
            found = (entry for entry in self._began(shard, names[0], within_ms) if entry.saga in names and has_begun(entry))
            entries += islice(_each_once(found), limit)
        newest = sorted(entries, key=_age, reverse=True)[:limit]
        return list(dict.fromkeys(entry.key for entry in newest))

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), outcomes: Sequence[str] = ()) -> Entries:
        self._placement.check()
        shards = self._placement.shards
        positions = read_positions(after, len(shards))
        looks = min(LOOKED_AT * limit, _LOOKED_AT_AT_ONCE)
        asked: list[Word] = [looks, min(limit, looks), len(names), *map(encode, names), *map(encode, outcomes)]
        calls = [
            self._client.prepare(_RECENT, [shard.journal, shard.order, shard.heads], [position, *asked])
            for shard, position in zip(shards, positions, strict=True)
        ]
        answers = self._send_all(calls)
        items, is_all = merged([items_of(*each) for each in enumerate(answers)], limit)
        entries = tuple(item.entry for item in items if item.entry is not None)
        return Entries(entries, "", 0) if is_all else Entries(entries, place_behind(items, answers), max(items[-1].at, 1))

    def purge(self, older_than_ms: int, limit: int) -> int:
        purged = 0
        for shard in self._placement.in_turn():
            keys, args = (shard.journal, shard.order, shard.heads, shard.completed), [self._now(), older_than_ms]
            purged += self._purge(_PURGE, shard.tag, keys, args, limit=limit - purged, at_once=_PURGED_AT_ONCE)
        return purged

    def oldest_at(self) -> int:
        self._placement.check()
        found = [self._client.run(_OLDEST, [shard.journal, shard.order], []) for shard in self._placement.shards]
        return min(filter(None, found), default=0)

    def _newest(self, shard: Shard, saga: str, key: str, limit: int) -> list[Entry]:
        """Return at least the newest ``limit`` entries: all that are of the time of the last one."""
        entries: list[Entry] = []
        for packed in self._walk(shard, encode(subject_of(saga, key))):
            entry = _unpack(shard, saga, key, packed)
            if len(entries) >= limit and entry.at < entries[limit - 1].at:
                break
            entries.append(entry)
        return entries

    def _walk(self, shard: Shard, subject: bytes) -> Iterator[bytes]:
        """Yield a key's entries, newest first."""
        number, digest = 0, b""
        while True:
            args: list[Word] = [subject, number, digest, _READ_AT_ONCE]
            number, digest, *entries = self._client.run(_HISTORY, [shard.journal, shard.heads], args)
            yield from entries
            if not number:
                return

    def _began(self, shard: Shard, saga: str, within_ms: int) -> Iterator[Entry]:
        """Yield a shard's entries of a first version, newest first; some twice."""
        looked_at = 0
        while True:
            args: list[Word] = [self._now(), within_ms, looked_at, _LOOKED_AT_AT_ONCE]
            looked_at, *entries = self._client.run(_BEGAN, [shard.journal, shard.order], args)
            yield from (_unpack(shard, saga, "", packed) for packed in entries)
            if not looked_at:
                return


def _each_once(entries: Iterable[Entry]) -> Iterator[Entry]:
    seen = set()
    for entry in entries:
        if (entry.step, entry.message_id) not in seen:
            seen.add((entry.step, entry.message_id))
            yield entry


def _unpack(shard: Shard, saga: str, key: str, packed: bytes) -> Entry:
    try:
        return unpack_entry(packed)
    except ValueError as exc:
        raise unreadable(saga, key, shard.journal, f"{packed[:60]!r}…", exc) from exc


def _age(entry: Entry) -> tuple[int, int]:
    return entry.at, entry.version
