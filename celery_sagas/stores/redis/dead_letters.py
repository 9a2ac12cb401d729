"""Dead letters in Redis."""

from typing import Final

from celery_sagas.errors import StoreError
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.stores.redis.keys import dead_letters_in
from celery_sagas.stores.redis.packing import encode, pack_dead_letter, unpack_dead_letter
from celery_sagas.stores.redis.placement import Placement
from celery_sagas.stores.redis.store import Now, RedisStore

_ADD: Final = load("dead_add")
_LIST: Final = load("dead_list")
_GET: Final = load("dead_get")
_REMOVE: Final = load("dead_remove")
_COUNT: Final = load("dead_count")


class RedisDeadLetters(RedisStore, DeadLetters):
    """Dead letters in a hash, and in a sorted set by their time.

    Those of messages have a hash tag of their own; those of rejected items are in the shard of their group.
    """

    def __init__(self, client: Client, placement: Placement, now: Now) -> None:
        super().__init__(client, placement, now)
        self._tags = [placement.dead, *(shard.tag for shard in placement.shards)]

    def add(self, dead_letter: DeadLetter) -> None:
        keys = dead_letters_in(self._tags[0])
        self._client.run(_ADD, keys, [self._now(), encode(dead_letter.id), pack_dead_letter(dead_letter)], commits=True)

    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        """Merge the dead letters of all tags; of equally new ones those of an earlier tag come first."""
        last = self._find(before) if before is not None else None
        if before is not None and last is None:
            return []
        dead_letters: list[DeadLetter] = []
        for position, tag in enumerate(self._tags):
            too_new = f"{'' if position < last[0] else '('}{last[1].at}" if last else ""
            answer = self._client.run(_LIST, dead_letters_in(tag), [encode(before or ""), too_new, limit])
            dead_letters += [_unpack(tag, id, packed) for id, packed in zip(answer[::2], answer[1::2], strict=True)]
        return sorted(dead_letters, key=lambda dead_letter: -dead_letter.at)[:limit]

    def get(self, id: str) -> DeadLetter | None:
        found = self._find(id)
        return found[1] if found else None

    def remove(self, id: str) -> bool:
        return any(self._run_once(_REMOVE, tag, dead_letters_in(tag), [encode(id)]) for tag in self._tags)

    def count(self) -> int:
        return sum(self._client.run(_COUNT, dead_letters_in(tag)[:1], []) for tag in self._tags)

    def _find(self, id: str) -> tuple[int, DeadLetter] | None:
        """Return a dead letter, and the position of its tag."""
        for position, tag in enumerate(self._tags):
            packed = self._client.run(_GET, dead_letters_in(tag)[:1], [encode(id)])
            if packed is not None:
                return position, _unpack(tag, encode(id), packed)
        return None


def _unpack(tag: str, id: bytes, packed: bytes) -> DeadLetter:
    try:
        return unpack_dead_letter(id.decode(), packed)
    except ValueError as exc:
        name, (dead_letters, times) = id.decode(errors="replace"), dead_letters_in(tag)
        raise StoreError(
            f"The dead letter {name!r} in the Redis hash {dead_letters!r} is damaged, {exc}. "
            f"Look at it with HGET, then remove it with HDEL, and with ZREM from {times!r}."
        ) from exc
