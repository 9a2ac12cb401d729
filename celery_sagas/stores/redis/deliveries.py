"""Counts of redeliveries in Redis."""

from typing import Final

from celery_sagas.stores.ports import Deliveries
from celery_sagas.stores.redis.connection.client import Client
from celery_sagas.stores.redis.connection.scripts import Now, load, servers_time
from celery_sagas.stores.redis.keys import answer_to, new_call
from celery_sagas.stores.redis.packing import digest_of
from celery_sagas.stores.redis.placement import Placement

#: The most messages that one script forgets: a script blocks all other clients.
_PURGED_AT_ONCE: Final = 500

_COUNT: Final = load("deliveries_count")
_PURGE: Final = load("deliveries_purge")


class RedisDeliveries(Deliveries):
    """Counts in one hash, and in a sorted set by the time of the last delivery; they share the dead letters' hash tag.

    No call waits for replicas: what a fail-over loses is counted by the next deliveries.
    """

    def __init__(self, client: Client, placement: Placement, now: Now = servers_time) -> None:
        self._client = client
        self._now = now
        self._tag = placement.dead
        self._keys = [f"{placement.dead}:deliveries", f"{placement.dead}:deliveries:at"]

    def count(self, step: str, message_id: str) -> int:
        call = new_call()
        args = [call, self._now(), digest_of(step, message_id)]
        counted: int = self._client.run(_COUNT, self._keys, args, answer=answer_to(call, self._tag))
        return counted

    def purge(self, older_than_ms: int, limit: int) -> int:
        purged = 0
        while (at_once := min(limit - purged, _PURGED_AT_ONCE)) > 0:
            call = new_call()
            args = [call, self._now(), older_than_ms, at_once]
            forgotten: int = self._client.run(_PURGE, self._keys, args, answer=answer_to(call, self._tag))
            purged += forgotten
            if forgotten < at_once:
                break
        return purged
