"""The audit in Redis: pages are merged from what the shards have."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from celery_sagas.stores.audit import LOOKED_AT, Audit, AuditPage, AuditPlace, place_behind
from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import digest_of_subject, encode, unpack_audit
from celery_sagas.stores.redis.store import RedisStore

#: How many entries one script looks at.
_LOOKED_AT_AT_ONCE: Final = 500
#: The most entries that one script removes.
_PURGED_AT_ONCE: Final = 200
#: How many characters a time, and a tilde with the digest of saga and key, has in the order.
_OF_TIME, _OF_SUBJECT = 16, 23

_PURGE: Final = load("audit_purge")
_RECENT: Final = load("audit_recent")


class _Part(NamedTuple):
    """What one script has answered."""

    entries: list[AuditEntry]
    end: AuditPlace | None  #: the place at which it stopped; ``None``: that was all


class RedisAudit(RedisStore, Audit):
    """Entries in one hash for each shard, and in a sorted set in the order of their times, and of those of each key."""

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), key: str | None = None) -> AuditPage:
        place, looks = place_behind(after, names, key), _LOOKED_AT_AT_ONCE
        if key is None:
            asked: list[Word] = [min(LOOKED_AT * limit, looks), limit, *map(encode, names)]
            calls = [self._prepare(shard, b"", place, asked) for shard in self._placement.in_turn()]
        else:
            asked, subjects = [min(limit, looks), limit], [b"~" + digest_of_subject(name, key) for name in names]
            shards = self._placement.of_key(names, key)
            calls = [self._prepare(shard, subject, place, asked) for shard in shards for subject in subjects]
        return _merged([_part(answer) for answer in self._send_all(calls)], limit)

    def purge(self, older_than_ms: int, limit: int) -> int:
        purged = 0
        for shard in self._placement.in_turn():
            args = [self._now(), older_than_ms]
            purged += self._purge(_PURGE, shard.tag, shard.audit, args, limit=limit - purged, at_once=_PURGED_AT_ONCE)
        return purged

    def _prepare(self, shard: Shard, prefix: bytes, place: AuditPlace | None, asked: Sequence[Word]) -> Call:
        """Prepare to read the members with a prefix, which a digit follows, that are behind a place."""
        behind = prefix + (encode(f"{place.at:0{_OF_TIME}d}{place.id}") if place else b":")  # which follows all digits
        return self._client.prepare(_RECENT, shard.audit, [b"(" + behind, b"[" + prefix + b"0", len(prefix) + _OF_TIME, *asked])


def _part(answer: Sequence[bytes]) -> _Part:
    end, *members = (member.decode(errors="replace") for member in answer[::2])
    entries = [_unpack(_place_of(member), packed) for member, packed in zip(members, answer[3::2], strict=True)]
    return _Part(entries, _place_of(end) if end else None)


def _place_of(member: str) -> AuditPlace:
    member = member[_OF_SUBJECT:] if member.startswith("~") else member
    return AuditPlace(int(member[:_OF_TIME]), member[_OF_TIME:])


def _unpack(place: AuditPlace, packed: bytes) -> AuditEntry:
    """Read an entry; one that is damaged must not hide others."""
    try:
        return unpack_audit(place.id, packed)._replace(at=place.at)
    except ValueError:
        return AuditEntry(place.id, "", "", "", "", "", "", 0, "", place.at)


def _merged(parts: Sequence[_Part], limit: int) -> AuditPage:
    """Merge the parts: up to the end of the first one that has more, since what follows there is not known."""
    end = max((part.end for part in parts if part.end), default=None)
    known = [entry for part in parts for entry in part.entries if end is None or AuditPlace.of(entry) >= end]
    known.sort(key=AuditPlace.of, reverse=True)
    last = AuditPlace.of(known[limit - 1]) if len(known) > limit else end
    return AuditPage(tuple(known[:limit]), str(last) if last else "")
