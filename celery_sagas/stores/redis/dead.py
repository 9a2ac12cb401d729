"""Dead letters in Redis."""

from typing import Final

from celery_sagas.errors import StoreError
from celery_sagas.stores.ports import DeadLetters
from celery_sagas.stores.records import DeadLetter
from celery_sagas.stores.redis.client import Client
from celery_sagas.stores.redis.keys import answer_to, new_call
from celery_sagas.stores.redis.packing import encode, pack_letter, unpack_letter
from celery_sagas.stores.redis.placement import Placement
from celery_sagas.stores.redis.scripts import Now, load, servers_time

_ADD: Final = load("dead_add")
_LIST: Final = load("dead_list")
_GET: Final = load("dead_get")
_REMOVE: Final = load("dead_remove")
_COUNT: Final = load("dead_count")


class RedisDeadLetters(DeadLetters):
    """Letters in one hash, and in a sorted set by their time; they have a hash tag of their own."""

    def __init__(self, client: Client, placement: Placement, now: Now = servers_time) -> None:
        self._client = client
        self._now = now
        self._letters = f"{placement.dead}:letters"
        self._keys = [self._letters, f"{placement.dead}:letters:at"]
        self._tag = placement.dead

    def add(self, letter: DeadLetter) -> None:
        now = self._now()
        self._client.run(_ADD, self._keys, [now, encode(letter.id), pack_letter(letter)], commits=True)

    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        answer = self._client.run(_LIST, self._keys, [encode(before or ""), limit])
        return [self._unpack(id, packed) for id, packed in zip(answer[::2], answer[1::2], strict=True)]

    def get(self, id: str) -> DeadLetter | None:
        packed = self._client.run(_GET, self._keys[:1], [encode(id)])
        return None if packed is None else self._unpack(encode(id), packed)

    def remove(self, id: str) -> bool:
        call = new_call()
        return bool(self._client.run(_REMOVE, self._keys, [call, encode(id)], answer=answer_to(call, self._tag)))

    def count(self) -> int:
        return int(self._client.run(_COUNT, self._keys[:1], []))

    def _unpack(self, id: bytes, packed: bytes) -> DeadLetter:
        try:
            return unpack_letter(id.decode(), packed)
        except ValueError as exc:
            name = id.decode(errors="replace")
            raise StoreError(
                f"The dead letter {name!r} in the Redis hash {self._letters!r} is damaged, {exc}. "
                f"Look at it with HGET, then remove it with HDEL, and with ZREM from {self._keys[1]!r}."
            ) from exc
