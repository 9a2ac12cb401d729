"""Buffers in Redis, inspected and changed by hand."""

from collections.abc import Iterator, Mapping
from typing import Final

from celery_sagas.errors import ItemNotBuffered, NothingBuffered
from celery_sagas.stores.aggregates import Buffers
from celery_sagas.stores.items import Counts, Group, Item, ItemState, Rules
from celery_sagas.stores.redis.aggregators.aggregates import OfGroups, read_item
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import digest_of_item, encode

#: The most items that one script reads, or removes: a script blocks all other clients.
_AT_ONCE: Final = 1_000

#: The states of items, by the script's words for them.
_STATES: Final[Mapping[str, ItemState]] = {"fresh": "free", "free": "free", "leased": "leased", "unresolved": "unresolved"}

_NAMES: Final = load("buffer_names")
_COUNT: Final = load("buffer_count")
_GROUPS: Final = load("buffer_groups")
_READ: Final = load("buffer_read")
_UNRESOLVED: Final = load("buffer_unresolved")
_FIRE: Final = load("buffer_fire")
_REMOVE: Final = load("buffer_remove")
_CLEAR: Final = load("buffer_clear")


class RedisBuffers(OfGroups, Buffers):
    """A view of the aggregators' items, read part by part: of thousands of items, each part is from its own moment."""

    def names(self) -> list[str]:
        answers = [self._client.run(_NAMES, [shard.buffers.names], []) for shard in self._placement.in_turn()]
        return sorted({name.decode() for answer in answers for name in answer})

    def count(self, name: str, group: str | None = None) -> Counts:
        shards = self._placement.in_turn() if group is None else [self._placement.of_group(name, group)]
        args: list[Word] = [] if group is None else [group]
        kinds = ("groups", "items", "fresh_ids", "unread")
        answers = [self._client.run(_COUNT, shard.buffers.of(name, *kinds), args) for shard in shards]
        return Counts(*map(sum, zip(*answers, strict=True)))

    def groups(self, name: str, limit: int, after: str = "") -> list[Group]:
        args: list[Word] = [f"({after}" if after else "-", limit]
        found: list[Group] = []
        for shard in self._placement.in_turn():
            answer = self._client.run(_GROUPS, shard.buffers.of(name, "groups", "order"), args)
            found += [Group(group.decode(), *numbers) for group, *numbers in zip(*[iter(answer)] * 5, strict=True)]
        return sorted(found)[:limit]

    def read(self, name: str, group: str, limit: int, after: int = 0) -> list[Item]:
        """Read a bounded number of items at once, until there are enough or no more."""
        shard = self._placement.of_group(name, group)
        free, leased, fresh = shard.buffers.of_group(name, group, "free", "leased", "fresh")
        stored, attempts, unread, fresh_ids = shard.buffers.of(name, "items", "attempts", "unread", "fresh_ids")
        keys = [stored, attempts, free, leased, unread, fresh, fresh_ids]
        items: list[Item] = []
        while (at_once := min(limit - len(items), _AT_ONCE)) > 0:
            last = items[-1].number if items else after
            answer = self._client.run(_READ, keys, [last, at_once, group])
            rows = zip(*[iter(answer)] * 4, strict=True)
            items += [_read(shard, (name, group), int(number), state.decode(), *rest) for number, state, *rest in rows]
            if len(answer) < 4 * at_once:
                break
        return items

    def unresolved(self, name: str, limit: int, after: tuple[str, int] | None = None) -> list[tuple[str, Item]]:
        shards = sorted(self._placement.in_turn(), key=lambda shard: shard.suffix)
        begin = "-"
        if after:
            shards = shards[shards.index(self._placement.of_group(name, after[0])) :]
            begin = f"({len(encode(after[0]))}:{after[0]}:{after[1]:016}"
        found: list[tuple[str, Item]] = []
        for shard in shards:
            found += self._unresolved_of(shard, name, begin, limit - len(found))
            if len(found) >= limit:
                break
            begin = "-"
        return found

    def _unresolved_of(self, shard: Shard, name: str, begin: str, limit: int) -> Iterator[tuple[str, Item]]:
        answer = self._client.run(_UNRESOLVED, shard.buffers.of(name, "unread", "items", "attempts"), [begin, limit])
        for member, attempts, packed in zip(*[iter(answer)] * 3, strict=True):
            group = member.partition(b":")[2][:-17].decode()
            item = read_item(shard, (name, group), int(member[-16:]), packed, attempts)
            yield group, item._replace(state="unresolved")

    def fire(self, rules: Rules, group: str) -> bool:
        return bool(self._change(_FIRE, rules, group, is_usual=True))

    def remove(self, rules: Rules, group: str, id: str, *, unresolved: bool = False) -> None:
        digest = digest_of_item(rules.name, group, id)
        buffered = self._change(_REMOVE, rules, group, digest, rules.remember_ms, int(unresolved))
        if buffered == 0:
            raise NothingBuffered(rules.name, group)
        if buffered > 0:
            raise ItemNotBuffered(rules.name, group, id, buffered)

    def clear(self, rules: Rules, group: str) -> int:
        cleared = 0
        while removed := self._change(_CLEAR, rules, group, rules.remember_ms, _AT_ONCE):
            cleared += removed
            if removed < _AT_ONCE:
                break
        return cleared


def _read(shard: Shard, group_id: tuple[str, str], number: int, word: str, attempts: int, packed: bytes) -> Item:
    item = read_item(shard, group_id, number, packed, attempts, is_fresh=word == "fresh")
    return item._replace(state=_STATES[word])
