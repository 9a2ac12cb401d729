"""Outgoing messages in Redis."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from celery_sagas.stores.outbox import Outbox
from celery_sagas.stores.records import (
    KEPT_MOST_MS,
    LOOK_MS,
    LOOKED_AT,
    Entry,
    OutboxGlance,
    OutboxPage,
    OutboxRow,
    OutboxTally,
    place_of,
)
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import Script, load
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import digest_of, encode, pack_next, unpack_row
from celery_sagas.stores.redis.placement import Placement
from celery_sagas.stores.redis.store import Now, RedisStore
from celery_sagas.stores.redis.turns import Turns

logger = logging.getLogger("celery_sagas")

#: The most rows that one script touches: a script blocks all other clients.
_AT_ONCE: Final = 500
#: How many characters of an error are kept.
_ERROR_CHARACTERS: Final = 2_000

_DAMAGED: Final = (
    "the field %r of the Redis hash %r, a message that is to be sent, is damaged, %s, and set aside; look at it with HGET, then "
    "restore it with HSET and make it due with ZADD %s 0, or remove it with HDEL"
)

_CLAIM: Final = load("outbox_claim_due")
_SET_ASIDE: Final = load("outbox_set_aside")
_CONFIRM: Final = load("outbox_confirm")
_RESCHEDULE: Final = load("outbox_reschedule")
_RELEASE: Final = load("outbox_release")
_READ: Final = load("outbox_read")
_TRIED: Final = load("outbox_tried")
_OVERDUE: Final = load("outbox_overdue")
_TALLY: Final = load("outbox_tally")
_HURRY: Final = load("outbox_hurry")
_FAIL: Final = load("outbox_fail")
_TIME: Final = load("outbox_time")
_COUNT: Final = load("outbox_count")
_COUNT_LEASED: Final = load("outbox_count_leased")


class RedisOutbox(RedisStore, Outbox):
    """Outgoing rows in one hash for each shard, and in a sorted set by the time from which they are due.

    Only a claim waits for replicas: what is claimed is published, and its commit must not be lost then. If a fail-over loses a
    confirmation, a message is sent again, as it may be anyway.
    """

    def __init__(self, client: Client, placement: Placement, now: Now) -> None:
        super().__init__(client, placement, now)
        self._turns = Turns(client)

    def claim_due(self, token: str, limit: int, lease_ms: int, cause: Entry | None = None) -> list[OutboxRow]:
        own = (encode(token), lease_ms, _digests(cause))
        return self._turns.take(self._shards(cause), limit, lambda shard, limit: self._claim_of(shard, limit, *own))

    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        return self._change(_CONFIRM, [self._now(), encode(token), keep_ms, KEPT_MOST_MS], ids)

    def reschedule(self, token: str, rows: Sequence[OutboxRow]) -> int:
        changed, by_id = 0, {row.id: row for row in rows}
        for shard, part in self._parts(dict.fromkeys(by_id)):
            args = [word for id in part for word in pack_next(by_id[id])]
            changed += self._run_once(_RESCHEDULE, shard.tag, shard.rows, [encode(token), *args])
        return changed

    def release(self, token: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        return self._change(_RELEASE, [self._now(), encode(token), delay_ms], ids)

    def fail(self, token: str, id: str, error: str, delay_ms: int) -> bool:
        shard = self._placement.of_id(id)
        args = [self._now(), encode(token), encode(id), encode(error[:_ERROR_CHARACTERS]), delay_ms]
        return bool(self._run_once(_FAIL, shard.tag, shard.rows, args))

    def hurry(self, ids: Sequence[str]) -> int:
        return self._change(_HURRY, [self._now()], ids)

    def read(self, ids: Sequence[str]) -> list[OutboxGlance]:
        found = dict[str, OutboxGlance]()
        for shard, part in self._parts(dict.fromkeys(ids)):
            answer = self._client.run(_READ, shard.rows, [encode(id) for id in part])
            found |= {glance.id: glance for glance in _glances(answer)}
        return [found[id] for id in ids if id in found]

    def tried(self, until: int, limit: int, after: str = "") -> list[OutboxGlance]:
        first = b"(t:" + encode(after) if after else b"[t:"
        found = list[OutboxGlance]()
        for shard in self._placement.in_turn():
            answer = self._client.run(_TRIED, shard.rows, [first, f"(t:{until + 1:016d}", limit])
            found += _glances(answer)
        return sorted(found, key=lambda glance: glance.place)[:limit]

    def overdue(self, before: int, limit: int, after: str = "") -> OutboxPage:
        at, _, id = after.partition(":")
        args: list[Word] = [self._now(), LOOK_MS, LOOKED_AT, before, limit, at, encode(id)]
        answers = [self._client.run(_OVERDUE, shard.rows, args) for shard in self._placement.in_turn()]
        # behind the place at which a shard has stopped it may have rows that come before those of the others
        end = min((place_of(int(at), id.decode()) for at, id, *_ in answers if at), default="")
        found = [glance for answer in answers for glance in _glances(answer[2:]) if not end or glance.due_place <= end]
        rows = sorted(found, key=lambda glance: glance.due_place)[:limit]
        return OutboxPage(rows, rows[-1].due_place if len(rows) == limit else end)

    def tally(self, at_most: int) -> OutboxTally:
        answers = [self._client.run(_TALLY, shard.rows, [self._now()]) for shard in self._placement.in_turn()]
        due, oldest, tried = zip(*answers, strict=True)
        return OutboxTally(min(sum(due), at_most), min(filter(None, oldest), default=0), min(sum(tried), at_most))

    def time(self) -> int:
        time: int = self._client.run(_TIME, self._placement.shards[0].rows[:1], [self._now()])
        return time

    def count(self) -> int:
        return sum(self._client.run(_COUNT, shard.rows[:1], []) for shard in self._placement.in_turn())

    def count_leased(self, cause: Entry) -> int:
        args = [self._now(), *_digests(cause)]
        return sum(self._client.run(_COUNT_LEASED, shard.rows, args) for shard in self._shards(cause))

    def _claim_of(
        self, shard: Shard, limit: int, token: bytes, lease_ms: int, digests: Sequence[bytes]
    ) -> Iterator[list[OutboxRow]]:
        """Lease a bounded number of rows at once, until there are enough or no more."""
        while limit > 0:
            at_once = min(limit, _AT_ONCE)
            args = [self._now(), token, at_once, lease_ms, *digests]
            # once the replicas have the lease, they have the commits that wrote the rows
            answer = self._run_once(_CLAIM, shard.tag, shard.rows, args, commits=True)
            damaged: list[bytes] = []
            yield list(_readable(shard, answer, damaged))
            if damaged:
                self._client.run(_SET_ASIDE, shard.rows, [token, *damaged])
            limit = 0 if len(answer) < 4 * at_once else limit - at_once

    def _change(self, script: Script, args: Sequence[Word], ids: Sequence[str]) -> int:
        """Run a script on the rows, each once, shard by shard and a bounded number at once."""
        changed = 0
        for shard, part in self._parts(dict.fromkeys(ids)):
            changed += self._run_once(script, shard.tag, shard.rows, [*args, *map(encode, part)])
        return changed

    def _parts(self, ids: dict[str, None]) -> Iterator[tuple[Shard, list[str]]]:
        by_shard: dict[Shard, list[str]] = {}
        for id in ids:
            by_shard.setdefault(self._placement.of_id(id), []).append(id)
        for shard, own in by_shard.items():
            for start in range(0, len(own), _AT_ONCE):
                yield shard, own[start : start + _AT_ONCE]

    def _shards(self, cause: Entry | None) -> list[Shard]:
        """Return the shards that may have rows: all, unless it is known where the message that decided them is kept."""
        return [self._placement.of_id(cause.attempt)] if cause else self._placement.in_turn()


def _digests(cause: Entry | None) -> list[bytes]:
    return [digest_of(cause.step, cause.message_id)] if cause else []


def _glances(answer: Sequence[Any]) -> list[OutboxGlance]:
    """Read rows as ``lua/parts/glances.lua`` writes them."""
    size = len(OutboxGlance._fields)
    return [_glance(answer[start : start + size]) for start in range(0, len(answer), size)]


def _glance(words: Sequence[Any]) -> OutboxGlance:
    due_at, attempts, tried_at, available_at, leased_until = map(int, words[1:6])
    id, *texts = (word.decode(errors="replace") for word in (words[0], *words[6:]))
    error, instance_id, kind, message_id, task, step, cause = texts
    now = tried_at, available_at, leased_until, error
    return OutboxGlance(id, kind, message_id, task, due_at, attempts, instance_id, step, cause, *now)


def _readable(shard: Shard, answer: Sequence[Any], damaged: list[bytes]) -> Iterator[OutboxRow]:
    """Read claimed rows. One that is damaged must not hold up the others: it is logged, and its id added to ``damaged``."""
    for id, packed, attempts, tried_at in zip(answer[::4], answer[1::4], answer[2::4], answer[3::4], strict=True):
        try:
            yield unpack_row(id.decode(), packed, attempts, tried_at)
        except ValueError as exc:
            damaged.append(id)
            logger.error(_DAMAGED, id.decode(errors="replace"), shard.rows[0], exc, shard.rows[1])  # noqa: TRY400 - no bug of ours
