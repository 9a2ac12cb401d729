"""Pages of instances in Redis: by a sorted set for each saga and shard, which the commits keep."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from celery_sagas.stores.instances import PENDING, SLOT_BITS, Glance, Instances, Page, bound_of, check_place
from celery_sagas.stores.records import Record
from celery_sagas.stores.redis.connection.connections import Word
from celery_sagas.stores.redis.connection.scripts import Script, load
from celery_sagas.stores.redis.keys import Shard
from celery_sagas.stores.redis.packing import encode, tag_path, unpack_glance, unpack_record, unreadable
from celery_sagas.stores.redis.store import RedisStore

T = TypeVar("T")

#: How many bytes of a slot, or of a tag, a member has before the id.
_BEFORE_ID: Final = 8
#: Behind every slot, and before every tag.
_BEHIND_SLOTS: Final = b"(~"
#: How a member is text: byte by byte, also where it is no UTF-8.
_BYTES: Final = "latin-1"
#: Behind every id: no UTF-8 has this byte.
_BEHIND_IDS: Final = b"\xff"
#: How many instances one script indexes, which it reads with their whole states: a script blocks all other clients.
_INDEXED_AT_ONCE: Final = 200
#: How many records one script returns.
_READ_AT_ONCE: Final = 100

_PAGE: Final = load("instances_page")
_READ: Final = load("instances_read")
_COUNT: Final = load("instances_count")
_INDEX: Final = load("instances_index")
_SWEEP: Final = load("instances_sweep")
#: Where ``index`` begins in a shard.
_FIRST_WALK: Final = "{}:instances:0"


class _Found(NamedTuple):
    """An instance of a page, before it is read."""

    position: str
    at: int  #: when the slot begins; 0 of a tag
    id: str
    packed: bytes

    def read(self, name: str) -> Glance:
        """Read it; a damaged one must not hide those that follow it."""
        try:
            return unpack_glance(name, self.id, self.packed)
        except ValueError:
            return Glance(self.id, name, "", 0, 0, 0, None, self.at, self.at)


class _Part(NamedTuple):
    """What one shard has for a page."""

    found: list[_Found]
    end: str  #: the position at which it stopped; empty: that was all


class RedisInstances(RedisStore, Instances):
    """Pages that are merged from those of all shards."""

    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        behind = _behind(after) if after else b""
        bounds = (behind or b"-", _BEHIND_SLOTS) if oldest_first else (behind or _BEHIND_SLOTS, b"-")
        answers = self._ask(_PAGE, name, [*bounds, int(oldest_first), limit, PENDING])
        parts = [_part(answer, _place_of) for _, answer in answers]
        return _merged(parts, name, limit, oldest_first=oldest_first)

    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        first, last = _bounds_of(tag)
        behind = b"(" + tag_path(*tag) + encode(bound_of(after)) if after else last
        answers = self._ask(_PAGE, name, [behind, first, 0, limit, PENDING])
        return _merged([_part(answer, _id_of) for _, answer in answers], name, limit)

    def read(self, name: str, ids: Sequence[str]) -> list[Record]:
        by_shard: dict[Shard, list[str]] = {}
        for id in ids:
            by_shard.setdefault(self._placement.of_id(id), []).append(id)
        found = [record for shard, own in by_shard.items() for record in self._records(shard, name, own)]
        by_id = {record.id: record for record in found}
        return [by_id[id] for id in ids if id in by_id]

    def count(self, name: str, at_most: int, tag: tuple[str, str] | None = None) -> int:
        answers = self._ask(_COUNT, name, _bounds_of(tag) if tag else ())
        counted: int = sum(count for _, count in answers)
        return min(counted, at_most)

    def index(self, name: str, limit: int, after: str = "") -> str:
        """Add what is missing of a shard, by a walk over its instances; then correct what is wrong, by a walk over the order."""
        self._placement.check()
        number, walk, position = (after or _FIRST_WALK.format(0)).split(":", 2)
        shard, script = self._placement.shards[int(number)], _INDEX if walk == "instances" else _SWEEP
        args: list[Word] = [position.encode(_BYTES), min(limit, _INDEXED_AT_ONCE)]
        answer = self._client.run(script, _keys(shard, name), args, commits=True).decode(_BYTES)
        if script is _INDEX:
            return f"{number}:listed:" if answer == "0" else f"{number}:instances:{answer}"
        if answer:
            return f"{number}:listed:{answer}"
        return _FIRST_WALK.format(int(number) + 1) if int(number) + 1 < len(self._placement.shards) else ""

    def _ask(self, script: Script, name: str, args: Sequence[Word]) -> list[tuple[Shard, Any]]:
        """Run a script in every shard, in one trip to each server; return each shard with its answer."""
        shards = self._placement.in_turn()
        answers = self._send_all([self._client.prepare(script, _keys(shard, name), args) for shard in shards])
        return list(zip(shards, answers, strict=True))

    def _records(self, shard: Shard, name: str, ids: Sequence[str]) -> Iterator[Record]:
        """Yield those of the instances that are there."""
        for first in range(0, len(ids), _READ_AT_ONCE):
            part = ids[first : first + _READ_AT_ONCE]
            answer = self._client.run(_READ, [shard.instances(name)], [encode(id) for id in part])
            for id, packed in zip(part, answer, strict=True):
                if packed is not None:
                    yield _unpack(unpack_record, shard, name, id, packed, "")


def _keys(shard: Shard, name: str) -> list[str]:
    return [shard.instances(name), shard.listed(name)]


def _behind(place: str) -> bytes:
    """Return the bound of the members behind a place."""
    check_place(place)
    return b"(" + encode(place.replace(":", "", 1))


def _bounds_of(tag: tuple[str, str]) -> tuple[bytes, bytes]:
    """Return the bounds of a tag's members."""
    path = tag_path(*tag)
    return b"[" + path, b"(" + path + _BEHIND_IDS


def _part(answer: Sequence[bytes], position_of: Callable[[bytes], str]) -> _Part:
    end, *members = answer[::2]
    pairs = zip(members, answer[3::2], strict=True)
    found = [_Found(position_of(member), _begin_of(member), _id_of(member), packed) for member, packed in pairs]
    return _Part(found, position_of(end) if end else "")


def _begin_of(member: bytes) -> int:
    """Return when the slot of a member begins; 0 of a tag."""
    return 0 if member.startswith(b"~") else int(member[:_BEFORE_ID], 16) << SLOT_BITS


def _place_of(member: bytes) -> str:
    return f"{member[:_BEFORE_ID].decode()}:{_id_of(member)}"


def _id_of(member: bytes) -> str:
    return member[_BEFORE_ID:].decode(errors="replace")


def _merged(parts: Sequence[_Part], name: str, limit: int, *, oldest_first: bool = False) -> Page:
    """Merge what the shards have: up to the end of the first one that has more, since what follows there is not known."""
    ends = [part.end for part in parts if part.end]
    end = (min if oldest_first else max)(ends, default="")
    is_behind = str.__gt__ if oldest_first else str.__lt__
    known = [each for part in parts for each in part.found if not end or not is_behind(each.position, end)]
    known.sort(key=lambda each: each.position, reverse=not oldest_first)
    glances = tuple(each.read(name) for each in known[:limit])
    return Page(glances, known[limit - 1].position if len(known) > limit else end)


def _unpack(unpack: Callable[..., T], shard: Shard, name: str, id: str, packed: bytes, *args: str) -> T:
    try:
        return unpack(name, id, packed, *args)
    except ValueError as exc:
        raise unreadable(name, "", shard.instances(name), id, exc) from exc
