"""Instances in Redis: each commit is one script."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.errors import AlreadyHandled, RevisionConflict
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import (
    ID,
    KEY,
    Change,
    Effects,
    Entry,
    Found,
    Handling,
    Lookup,
    NewRecord,
    Record,
    Renamed,
    outbox_row,
)
from celery_sagas.stores.redis.connection.calls import Call
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import Script, load
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import (
    digest_of,
    digest_of_subject,
    encode,
    key_path,
    pack_audit,
    pack_change,
    pack_entry,
    pack_new,
    pack_row,
    paths,
    subject_of,
    tag_paths,
    unpack_entry,
    unpack_found,
    unpack_record,
    unreadable,
)
from celery_sagas.stores.redis.store import Prepared, RedisStore

#: The numbers of removed keys and tags, of added ones and of cancelled rows, for a script that has none.
_NONE: Final = (0, 0, 0)

#: What commits with an entry of the audit run.
_AUDITED: Final = {name: load(f"{name}_audited") for name in ("saga_insert", "saga_update", "saga_delete", "saga_record")}

_FIND: Final = load("saga_find")
_INSERT: Final = load("saga_insert")
_UPDATE: Final = load("saga_update")
_DELETE: Final = load("saga_delete")
_RECORD: Final = load("saga_record")
_LOCK: Final = load("saga_lock")
_COUNT: Final = load("saga_count")
_RENAME: Final = load("saga_rename")
#: How many instances one script moves, with their whole states: a script blocks all other clients.
_RENAMED_AT_ONCE: Final = 20


class RedisSagaStore(RedisStore, SagaStore):
    """Instances in one hash for each saga and shard."""

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        call, read = self.prepare_find(lookup, handling)
        found: Found = read(self._client.send(call))
        if wait := self.prepare_wait(call, found):
            self._client.send(wait)
        return found

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._perform(self.prepare_insert(record, effects))

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._perform(self.prepare_update(record, change, effects))

    def delete(self, record: Record, effects: Effects) -> None:
        self._perform(self.prepare_delete(record, effects))

    def record(self, effects: Effects) -> None:
        self._perform(self.prepare_record(effects))

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        has_lock: bool = self._perform(self.prepare_lock(record, lock_owner, for_ms))
        return has_lock

    def count(self, names: Sequence[str]) -> dict[str, int]:
        counts = dict.fromkeys(names, 0)
        for shard in self._placement.in_turn():
            found = self._client.run(_COUNT, [shard.instances(name) for name in names], [])
            for name, number in zip(names, found, strict=True):
                counts[name] += number
        return counts

    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        if not after:
            self._placement.register_name(name, former)
        number, _, cursor = (after or "0:0").partition(":")
        shard = self._placement.shards[int(number)]
        keys = [key for each in (former, name) for key in (shard.instances(each), shard.keys(each), shard.listed(each))]
        args: list[Word] = [cursor, min(limit, _RENAMED_AT_ONCE)]
        found, moved, *stay = self._run_once(_RENAME, shard.tag, keys, args, commits=True)
        texts = [text.decode(errors="replace") for text in stay]
        conflicts = tuple(zip(texts[::2], texts[1::2], strict=True))
        return Renamed(moved, conflicts, self._next(int(number), found.decode() or cursor, is_over=found == b"0"))

    def prepare_find(self, lookup: Lookup, handling: Handling | None = None) -> Prepared:
        """Prepare ``find``; what was found may have to be confirmed with ``prepare_wait``."""
        shard = self._placement.of_lookup(lookup)
        digests = [digest_of(step, handling.message_id) for step in handling.steps] if handling else []
        value, by = encode(lookup.value), lookup.property
        args = [b"", value] if by == ID else [b"%b=%b" % (encode(by), value), b""]
        call = self._client.prepare(_FIND, shard.find(lookup.names), [*args, *digests], usual=(self._now(),))
        return Prepared(call, partial(_found, shard, lookup, digests))

    def prepare_wait(self, find: Call, found: Found) -> Call | None:
        """Prepare to wait for the replicas of an entry that was found.

        Its commit may have been refused for want of them, and its message is acknowledged next.
        """
        return self._client.prepare_wait(find.keys[0]) if found.handled and self._client.has_replicas else None

    def prepare_insert(self, record: NewRecord, effects: Effects) -> Prepared:
        """Prepare ``insert``."""
        shard, saga = self._placement.of_id(record.id), record.names[0]
        head, tail = pack_new(record)
        keys: list[Word] = [key_path(record.key), *paths(record.keys), *tag_paths(record.tags)]
        own: list[Word] = [record.id, head, tail, *keys]
        return self._commit(_INSERT, shard, shard.commit(saga, record.names), (len(keys), 0, 0), own, effects, (saga, record.key))

    def prepare_update(self, record: Record, change: Change, effects: Effects) -> Prepared:
        """Prepare ``update``."""
        shard = self._placement.of_id(record.id)
        head, tail = pack_change(record, change)
        removed: list[Word] = [*paths(change.removed_keys), *tag_paths(change.removed_tags)]
        added: list[Word] = [*paths(change.added_keys), *tag_paths(change.added_tags)]
        numbers = (len(removed), len(added), len(change.cancelled))
        own: list[Word] = [record.id, record.version, effects.lock_owner, head, tail, *removed, *added, *change.cancelled]
        return self._commit(
            _UPDATE, shard, shard.commit(record.saga, change.names), numbers, own, effects, (record.saga, record.key)
        )

    def prepare_delete(self, record: Record, effects: Effects) -> Prepared:
        """Prepare ``delete``."""
        shard = self._placement.of_id(record.id)
        own: list[Word] = [record.id, record.version, effects.lock_owner, key_path(record.key)]
        return self._commit(_DELETE, shard, shard.commit(record.saga), _NONE, own, effects, (record.saga, record.key))

    def prepare_record(self, effects: Effects) -> Prepared:
        """Prepare ``record``."""
        entry = effects.entry
        shard = self._placement.of_id(entry.attempt)
        return self._commit(_RECORD, shard, shard.effects, _NONE, [], effects, (entry.saga, entry.key))

    def prepare_lock(self, record: Record, lock_owner: str, for_ms: int) -> Prepared:
        """Prepare ``lock``."""
        shard = self._placement.of_id(record.id)
        keys = [shard.instances(record.saga), shard.locks]
        return Prepared(self._client.prepare(_LOCK, keys, [self._now(), record.id, lock_owner, for_ms]), bool)

    def _next(self, number: int, cursor: str, *, is_over: bool) -> str:
        """Return where a rename goes on: in this shard, or in the next one."""
        if not is_over:
            return f"{number}:{cursor}"
        return f"{number + 1}:0" if number + 1 < len(self._placement.shards) else ""

    def _commit(
        self,
        script: Script,
        shard: Shard,
        keys: Sequence[str],
        numbers: tuple[int, int, int],
        own: list[Word],
        effects: Effects,
        about: tuple[str, str],
    ) -> Prepared:
        entry = effects.entry
        digest = digest_of(entry.step, entry.message_id)
        completes = int(entry.outcome == "completed")
        usual = (self._now(), completes, effects.owner, effects.grace_ms, len(effects.outgoing), *numbers)
        subject = subject_of(entry.saga, entry.key)
        args: list[Word] = [digest, entry.attempt, subject, pack_entry(entry), entry.instance_id, *own]
        for row in effects.outgoing:
            args += pack_row(outbox_row(row, entry.instance_id, entry.step, entry.message_id), digest)
        if audit := effects.audit:
            script, keys = _AUDITED[script.name], [*keys, *shard.audit]
            args += [encode(audit.id), digest_of_subject(audit.saga, audit.key), pack_audit(audit)]
        call = self._client.prepare(script, keys, args, usual=usual, commits=True)
        return Prepared(call, partial(_check, entry, about))


def _check(entry: Entry, about: tuple[str, str], answer: bytes) -> None:
    """Raise what the answer to a commit says."""
    if answer == b"ok":
        return
    if answer == b"handled":
        raise AlreadyHandled(entry.step, entry.message_id)
    raise RevisionConflict(*about, answer.decode())


def _found(shard: Shard, lookup: Lookup, digests: Sequence[bytes], answer: bytes) -> Found:
    number, id, packed, entry, lock_owner = unpack_found(answer)
    return Found(
        _record(shard, lookup, lookup.names[number - 1], id, packed, lock_owner) if number else None,
        _entry(shard, lookup, digests, entry) if entry is not None else None,
        shard.id(time_ordered_id()),
    )


def _record(shard: Shard, lookup: Lookup, saga: str, id: bytes, packed: bytes | None, lock_owner: bytes) -> Record:
    name = id.decode(errors="replace")
    if packed is None:
        path = f"{lookup.property}={lookup.value}"
        raise unreadable(saga, lookup.value, shard.keys(saga), path, f"the instance {name!r} that it names is gone")
    try:
        record = unpack_record(saga, id.decode(), packed, lock_owner.decode())
    except ValueError as exc:
        raise unreadable(saga, lookup.value, shard.instances(saga), name, exc) from exc
    if lookup.property == KEY and record.key != lookup.value:
        problem = f"the instance {name!r} that it names has another key"
        raise unreadable(saga, lookup.value, shard.keys(saga), key_path(lookup.value), problem)
    return record


def _entry(shard: Shard, lookup: Lookup, digests: Sequence[bytes], packed: bytes) -> Entry:
    try:
        return unpack_entry(packed)
    except ValueError as exc:
        field = b" or ".join(digests).decode()
        raise unreadable(lookup.names[0], lookup.value, shard.journal, field, exc) from exc
