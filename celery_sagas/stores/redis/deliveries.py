"""Counts of redeliveries in Redis."""

from typing import Final

from celery_sagas.stores.ports import Deliveries
from celery_sagas.stores.redis.connection.scripts import load
from celery_sagas.stores.redis.packing import digest_of
from celery_sagas.stores.redis.store import Prepared, RedisStore

#: The most messages that one script forgets.
_PURGED_AT_ONCE: Final = 500

_COUNT: Final = load("deliveries_count")
_PURGE: Final = load("deliveries_purge")


class RedisDeliveries(RedisStore, Deliveries):
    """Counts in one hash, and in a sorted set by the time of the last delivery; they share the dead letters' hash tag.

    No call waits for replicas: what a fail-over loses is counted by the next deliveries.
    """

    def count(self, step: str, message_id: str) -> int:
        counted: int = self._perform(self.prepare_count(step, message_id))
        return counted

    def prepare_count(self, step: str, message_id: str) -> Prepared:
        """Prepare ``count``."""
        args = [self._now(), digest_of(step, message_id)]
        return Prepared(self._prepare_once(_COUNT, self._placement.dead, self._keys(), args), int)

    def purge(self, older_than_ms: int, limit: int) -> int:
        args = [self._now(), older_than_ms]
        return self._purge(_PURGE, self._placement.dead, self._keys(), args, limit=limit, at_once=_PURGED_AT_ONCE)

    def _keys(self) -> list[str]:
        tag = self._placement.dead
        return [f"{tag}:deliveries", f"{tag}:deliveries:at"]
