"""Pages of the journal in Redis: merged from what the shards have."""

import re
from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Any, Final, NamedTuple

from celery_sagas.stores.recent import no_place
from celery_sagas.stores.records import Entry
from celery_sagas.stores.redis.packing import unpack_entry

#: Positions with a dot between them; each is a number that a script can count with.
_PLACE: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})*")


class Item(NamedTuple):
    """An entry of a shard, or the end of what is known of the shard."""

    shard: int
    position: int  #: in the shard's journal
    at: int
    entry: Entry | None  #: ``None``: what follows is not known


def read_positions(after: str, shards: int) -> list[int | str]:
    """Return the positions in the shards that ``Entries.after`` names; empty texts, if it is empty.

    Raises:
        ValueError: It names none.
    """
    if not after:
        return [""] * shards
    positions = [int(word) for word in after.split(".")] if _PLACE.fullmatch(after) else []
    if len(positions) != shards:
        raise no_place(after)
    return [*positions]


def place_behind(items: Sequence[Item], answers: Sequence[Sequence[Any]]) -> str:
    """Return the place behind what has been taken of the scripts' answers."""
    positions = [begin for begin, *_ in answers]
    for item in items:
        positions[item.shard] = item.position
    return ".".join(map(str, positions))


def items_of(shard: int, answer: Sequence[Any]) -> Iterator[Item]:
    """Yield what a script has answered, in the order of the shard."""
    _, end, at, *found = answer
    for position, packed in zip(found[::2], found[1::2], strict=True):
        entry = _unpack(packed, at)
        yield Item(shard, position, entry.at, entry)
    if end:
        yield Item(shard, end, at, None)


def merged(parts: Sequence[Iterator[Item]], limit: int) -> tuple[list[Item], bool]:
    """Return the first items of all shards, as far as it is known which they are; and whether that was all."""
    found, taken = merge(*parts, key=lambda item: -item.at), list[Item]()
    for item in found:
        taken.append(item)
        if item.entry is None:
            return taken, False
        if len(taken) == limit:
            return taken, next(found, None) is None
    return taken, True


def _unpack(packed: bytes, at: int) -> Entry:
    """Read an entry; one that is damaged must not hide others."""
    try:
        return unpack_entry(packed)
    except ValueError:
        time = re.match(rb"[0-9]{1,15} ", packed)
        return Entry("", "", "", "", "", "", "", 0, "", int(time[0]) if time else at)
