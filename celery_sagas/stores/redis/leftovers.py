"""Unresolved and rejected items in Redis."""

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from celery_sagas.stores.aggregates import Leftovers
from celery_sagas.stores.items import Kept, Rules
from celery_sagas.stores.redis.aggregates import of_rules
from celery_sagas.stores.redis.client import Client
from celery_sagas.stores.redis.connections import Word
from celery_sagas.stores.redis.keys import Shard, new_call
from celery_sagas.stores.redis.packing import unpack_kept, unreadable
from celery_sagas.stores.redis.placement import Placement
from celery_sagas.stores.redis.scripts import Now, Script, load, servers_time

#: How many items one script reads, or changes: it holds up everybody else.
_AT_ONCE: Final = 500

_LIST: Final = load("leftover_list")
_UNREAD: Final = load("leftover_unread")
_NOTE: Final = load("leftover_note")
_FIND: Final = load("leftover_find")
_PUT_BACK: Final = load("leftover_put_back")
_DISCARD: Final = load("leftover_discard")


class RedisLeftovers(Leftovers):
    """Items in the order of their handles: a number that grows with the time, and the shard where there are several."""

    def __init__(self, client: Client, placement: Placement, now: Now = servers_time) -> None:
        self._client = client
        self._placement = placement
        self._now = now

    def kept(self, name: str, kind: str, limit: int, after: str = "") -> list[Kept]:
        found = [self._kept_of(shard, name, kind, limit, after) for shard in self._placement.in_turn()]
        return list(islice(merge(*found, key=_order), limit))

    def unread(self, name: str, reader: str, limit: int) -> list[Kept]:
        found: list[Kept] = []
        for shard in self._placement.in_turn():
            keys = shard.buffers.of(name, "kept", "items", "notes")
            found += self._read(_UNREAD, shard, name, keys, [reader, limit - len(found)])
            if len(found) >= limit:
                break
        return sorted(found, key=_order)

    def note(self, name: str, handles: Sequence[str], reader: str) -> int:
        noted = 0
        for shard, part in self._parts(handles):
            noted += self._client.run(_NOTE, shard.buffers.of(name, "kept", "unresolved", "notes"), [reader, *part])
        return noted

    def put_back(self, rules: Rules, handles: Sequence[str]) -> int:
        return self._change(_PUT_BACK, rules, handles)

    def discard(self, rules: Rules, handles: Sequence[str]) -> int:
        return self._change(_DISCARD, rules, handles, rules.remember_ms)

    def _kept_of(self, shard: Shard, name: str, kind: str, limit: int, after: str) -> Iterator[Kept]:
        """Yield the items of a shard that follow a handle, at most ``limit``, reading a bounded number at once."""
        keys = shard.buffers.of(name, "kept", "items", kind)
        first = _first_after(shard, after)
        while limit > 0:
            part = self._read(_LIST, shard, name, keys, [first, min(limit, _AT_ONCE)])
            yield from part
            if len(part) < min(limit, _AT_ONCE):
                return
            limit -= len(part)
            first = f"({_number(part[-1].handle)}"

    def _read(self, script: Script, shard: Shard, name: str, keys: Sequence[str], args: Sequence[Word]) -> list[Kept]:
        answer = self._client.run(script, keys, args)
        return [_unpack(shard, name, keys[0], *row) for row in zip(*[iter(answer)] * 3, strict=True)]

    def _change(self, script: Script, rules: Rules, handles: Sequence[str], *own: Word) -> int:
        """Run a script on the items of each group."""
        changed = 0
        for shard, part in self._parts(handles):
            answer = self._client.run(_FIND, shard.buffers.of(rules.name, "kept"), part)
            groups: dict[str, list[bytes]] = {}
            for number, group in zip(answer[::2], answer[1::2], strict=True):
                groups.setdefault(group.decode(), []).append(number)
            for group, numbers in groups.items():
                call, keys = new_call(), shard.buffers.change(rules.name, group)
                args = [*of_rules(rules, group, self._now(), call), *own, *numbers]
                changed += self._client.run(script, keys, args, answer=shard.answer(call), commits=True)
        return changed

    def _parts(self, handles: Sequence[str]) -> Iterator[tuple[Shard, list[str]]]:
        """Yield the numbers in handles, each once, but for strange ones: shard by shard, and a bounded number at once."""
        shards = {shard.place: shard for shard in self._placement.in_turn()}
        numbers: dict[str, list[str]] = {}
        for handle in dict.fromkeys(handles):
            number, _, place = handle.partition(".")
            if place in shards and number.isascii() and number.isdigit():
                numbers.setdefault(place, []).append(number)
        for place, own in numbers.items():
            for start in range(0, len(own), _AT_ONCE):
                yield shards[place], own[start : start + _AT_ONCE]


def _unpack(shard: Shard, name: str, key: str, number: bytes, packed: bytes, buffered: bytes) -> Kept:
    handle = f"{number.decode()}.{shard.place}" if shard.place else number.decode()
    try:
        return unpack_kept(handle, packed, buffered)
    except ValueError as exc:
        raise unreadable(name, handle, key, number.decode(), exc) from exc


def _number(handle: str) -> int:
    number = handle.partition(".")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def _order(kept: Kept) -> tuple[int, str]:
    return _number(kept.handle), kept.handle


def _first_after(shard: Shard, handle: str) -> str:
    """Return from which number on the items of a shard follow a handle, as ``ZRANGEBYSCORE`` takes it."""
    if not handle:
        return "-inf"
    number, _, place = handle.partition(".")
    return f"{'' if shard.place > place else '('}{_number(number)}"
