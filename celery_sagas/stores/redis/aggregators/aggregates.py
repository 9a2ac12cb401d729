"""Aggregators in Redis."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, repeat
from typing import Any, Final

from celery_sagas.errors import LeaseLost
from celery_sagas.stores.aggregates import AggregateStore
from celery_sagas.stores.items import Added, Addition, DueGroup, Item, Rules, Snapshot
from celery_sagas.stores.records import DeadLetter, Sends, outbox_row
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import Script, load
from celery_sagas.stores.redis.keys import Shard, new_call
from celery_sagas.stores.redis.packing import (
    digest_of,
    digest_of_item,
    encode,
    pack_dead_letter,
    pack_item,
    pack_rejected,
    pack_row,
    unpack_item,
    unreadable,
    unreadable_in_list,
)
from celery_sagas.stores.redis.placement import Placement
from celery_sagas.stores.redis.store import Now, RedisStore
from celery_sagas.stores.redis.turns import Turns

#: The most groups that one script claims, ids that one forgets, and items that one inserts: a script blocks all other clients.
_AT_ONCE: Final = 500
_INSERTED_AT_ONCE: Final = 5_000

_INSERT: Final = load("aggregate_insert")
_CLAIM: Final = load("aggregate_claim")
_RENEW: Final = load("aggregate_renew")
_REMOVE: Final = load("aggregate_remove")
_RELEASE: Final = load("aggregate_release")
_RESOLVE: Final = load("aggregate_resolve")
_RESTORE: Final = load("aggregate_restore")
_CLAIM_DUE: Final = load("aggregate_claim_due")
_PURGE: Final = load("aggregate_purge")


class OfGroups(RedisStore):
    """The base of the stores that change groups."""

    def _change(self, script: Script, rules: Rules, group: str, *own: Word, is_usual: bool = False, commits: bool = True) -> int:
        shard = self._placement.of_group(rules.name, group)
        keys = shard.buffers.change(rules.name, group, is_usual=is_usual)
        args = [*_of_rules(rules, group, self._now()), *own]
        return int(self._run_once(script, shard.tag, keys, args, commits=commits))


class RedisAggregateStore(OfGroups, AggregateStore):
    """Items in a list for each group, until a flush takes them, then in one hash for each aggregator and shard; a group lives
    whole in one shard, chosen by its name.

    Insertions, claims and removals wait for replicas. If a fail-over loses a flush request, a renewal or a release, the time that
    it set ends sooner or later than intended.
    """

    def __init__(self, client: Client, placement: Placement, now: Now) -> None:
        super().__init__(client, placement, now)
        self._turns = Turns(client)

    def insert(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        if len(additions) == 1 and not _is_long(rules, additions[0]):
            return self._insert(self._placement.of_group(rules.name, additions[0].group), rules, additions)
        pieces = [_pieces(rules, addition) for addition in additions]
        added = iter(self._insert_all(rules, [piece for each in pieces for piece in each]))
        return [_together(list(islice(added, len(each)))) for each in pieces]

    def claim(self, rules: Rules, group: str, token: str) -> Snapshot | None:
        shard = self._placement.of_group(rules.name, group)
        keys = shard.buffers.change(rules.name, group, is_usual=True)
        args = ["-", *_of_rules(rules, group, self._now()), token, rules.limit, rules.max_attempts]
        answer = self._client.run(_CLAIM, keys, args, commits=True)
        return _snapshot(shard, rules, group, answer) if answer else None

    def renew(self, rules: Rules, group: str, token: str) -> bool:
        keys = self._placement.of_group(rules.name, group).buffers.change(rules.name, group, is_usual=True)
        return bool(self._client.run(_RENEW, keys, ["-", *_of_rules(rules, group, self._now()), token]))

    def new_id(self, rules: Rules, group: str) -> str:
        return self._placement.of_group(rules.name, group).id(super().new_id(rules, group))

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
        shard = self._placement.of_group(rules.name, group)
        keys = shard.buffers.change(rules.name, group, is_usual=not (rejected or unreadable or sends))
        own = [token, rules.remember_ms, *_outgoing(sends), *_exceptions(rejected, unreadable)]
        args = [*_of_rules(rules, group, self._now()), *own]
        answer = self._run_once(_REMOVE, shard.tag, (*keys, *shard.rows) if sends else keys, args, commits=True)
        if answer < 0:
            raise LeaseLost(rules.name, group, token)
        return bool(answer)

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
        is_usual = not (rejected or unreadable)
        own = [token, rules.remember_ms, int(counted), delay_ms, *_exceptions(rejected, unreadable)]
        # a dead letter must not be lost
        if not self._change(_RELEASE, rules, group, *own, is_usual=is_usual, commits=not is_usual):
            raise LeaseLost(rules.name, group, token)

    def resolve(self, rules: Rules, group: str, numbers: Collection[int]) -> int:
        chosen = list(numbers)
        parts = [chosen[start : start + _AT_ONCE] for start in range(0, len(chosen), _AT_ONCE)]
        return sum(self._change(_RESOLVE, rules, group, *part) for part in parts)

    def restore(self, rules: Rules, dead_letter: DeadLetter) -> bool:
        digest = digest_of_item(rules.name, dead_letter.key, dead_letter.message_id)
        own = encode(dead_letter.id), dead_letter.number, digest, pack_rejected(digest, dead_letter)
        return bool(self._change(_RESTORE, rules, dead_letter.key, *own))

    def claim_due(self, names: Sequence[str], limit: int, lease_ms: int) -> list[DueGroup]:
        known = list(dict.fromkeys(names))
        if not known:
            return []
        shards = self._placement.in_turn()
        return self._turns.take(shards, limit, lambda shard, limit: self._claim_due_of(shard, known, limit, lease_ms))

    def purge(self, limit: int) -> int:
        purged = 0
        for shard in self._placement.in_turn():
            purged += self._purge(_PURGE, shard.tag, [shard.buffers.seen], [self._now()], limit=limit - purged, at_once=_AT_ONCE)
        return purged

    def _scripts(self, name: str, additions: Sequence[Addition]) -> Iterator[tuple[Shard, list[int]]]:
        """Yield the positions of the additions that one script inserts: of one shard, each group once, and not too many items."""
        parts: dict[tuple[Shard, int], list[int]] = {}
        turns: Counter[str] = Counter()
        sizes: Counter[tuple[Shard, int]] = Counter()
        for position, addition in enumerate(additions):
            shard, size = self._placement.of_group(name, addition.group), len(addition.items) + 1
            while (part := (shard, turns[addition.group])) in parts and sizes[part] + size > _INSERTED_AT_ONCE:
                turns[addition.group] += 1
            turns[addition.group] += 1
            sizes[part] += size
            parts.setdefault(part, []).append(position)
        for (shard, _), positions in parts.items():
            yield shard, positions

    def _insert_all(self, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        added = [Added(0)] * len(additions)
        for shard, positions in self._scripts(rules.name, additions):
            answers = self._insert(shard, rules, [additions[position] for position in positions])
            for position, answer in zip(positions, answers, strict=True):
                added[position] = answer
        return added

    def _insert(self, shard: Shard, rules: Rules, additions: Sequence[Addition]) -> list[Added]:
        has_unreadable = any(item.is_unreadable for addition in additions for item in addition.items)
        groups = [addition.group for addition in additions]
        keys = shard.buffers.insertion(rules.name, groups, has_unreadable=has_unreadable)
        args = [new_call(), *_of_rules(rules, rules.name, self._now()), rules.max_buffered, len(additions)]
        for addition in additions:
            _pack(args, rules.name, addition)
        answer = map(int, self._client.run(_INSERT, keys, args, commits=True).split())
        return [Added(new, bool(needs_flush), bool(is_full)) for new, needs_flush, is_full in zip(*[answer] * 3, strict=True)]

    def _claim_due_of(self, shard: Shard, names: Sequence[str], limit: int, lease_ms: int) -> Iterator[list[DueGroup]]:
        """Request the flushes of a bounded number of groups at once, until there are enough or no more."""
        keys = [key for name in names for key in shard.buffers.of(name, "groups", "due")]
        while limit > 0:
            at_once = min(limit, _AT_ONCE)
            answer = self._run_once(_CLAIM_DUE, shard.tag, keys, [self._now(), at_once, lease_ms])
            yield [DueGroup(names[at], group.decode()) for at, group in zip(answer[::2], answer[1::2], strict=True)]
            limit = 0 if len(answer) < 2 * at_once else limit - at_once


def _of_rules(rules: Rules, about: str, now: int | str) -> list[Word]:
    """Return the arguments that follow the call in the scripts that look at a trigger.

    Args:
        rules: Of the aggregator.
        about: The group; the aggregator, for an insertion.
        now: The time, or empty.
    """
    return [now, about, rules.size, rules.within_ms, rules.idle_ms, rules.lease_ms]


def _is_long(rules: Rules, addition: Addition) -> bool:
    """Return whether one script would block others too long; an addition to a group that may be full is never split."""
    return len(addition.items) > _INSERTED_AT_ONCE and not rules.max_buffered


def _pieces(rules: Rules, addition: Addition) -> list[Addition]:
    if not _is_long(rules, addition):
        return [addition]
    group, items = addition
    return [Addition(group, items[at : at + _INSERTED_AT_ONCE]) for at in range(0, len(items), _INSERTED_AT_ONCE)]


def _together(pieces: Sequence[Added]) -> Added:
    """Return the result of an addition, given the results of its pieces."""
    added, needs_flush, is_full = zip(*pieces, strict=True)
    return Added(sum(added), any(needs_flush), any(is_full))


def _pack(args: list[Word], name: str, addition: Addition) -> None:
    """Append the arguments of ``aggregate_insert`` for an addition."""
    group, items = addition
    digests = [digest_of_item(name, group, item.id) for item in items]
    args += [group, len(items), *digests]
    args += [pack_item(digest, item) for digest, item in zip(digests, items, strict=True)]


def _outgoing(sends: Sends | None) -> list[Word]:
    """Return the arguments of a removal for what it sends."""
    if sends is None or not sends.outgoing:
        return [0]
    digest = digest_of(sends.step, sends.cause)
    rows = [pack_row(outbox_row(row, "", sends.step, sends.cause), digest) for row in sends.outgoing]
    return [len(rows), sends.owner, sends.grace_ms, digest, *(word for row in rows for word in row)]


def _exceptions(rejected: Sequence[DeadLetter], unreadable: Collection[int]) -> list[Word]:
    """Return the arguments of a lease's end for the items that are neither removed nor released."""
    dead_letters = [
        word for dead_letter in rejected for word in (dead_letter.number, encode(dead_letter.id), pack_dead_letter(dead_letter))
    ]
    return [len(unreadable), *unreadable, *dead_letters]


def _snapshot(shard: Shard, rules: Rules, group: str, answer: Sequence[Any]) -> Snapshot:
    reason, unresolved, is_more, numbers, attempts, *packed = answer
    failures = map(int, attempts.split()) if attempts else repeat(0)
    items = [
        read_item(shard, (rules.name, group), int(number), each, failed)
        for number, each, failed in zip(numbers.split(), packed, failures, strict=False)
    ]
    return Snapshot(tuple(items), reason.decode(), unresolved, bool(is_more))


def read_item(
    shard: Shard, group_id: tuple[str, str], number: int, packed: bytes, attempts: int, *, is_fresh: bool = False
) -> Item:
    """Read an item of an aggregator and a group.

    Raises:
        UnreadableState: It is damaged.
    """
    try:
        return unpack_item(number, packed, attempts)
    except ValueError as exc:
        if is_fresh:
            raise unreadable_in_list(*group_id, shard.buffers.of_group(*group_id, "fresh")[0], str(number), exc) from exc
        raise unreadable(*group_id, shard.buffers.of(group_id[0], "items")[0], str(number), exc) from exc
