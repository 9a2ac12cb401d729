"""Counts of deliveries in memory."""

from itertools import islice

from celery_sagas.stores.memory.state import MemoryStore
from celery_sagas.stores.ports import Deliveries


class MemoryDeliveries(MemoryStore, Deliveries):
    """Counts in the order of the last deliveries."""

    def count(self, step: str, message_id: str) -> int:
        with self._state.lock:
            count, _ = self._state.deliveries.pop((step, message_id), (0, 0))
            self._state.deliveries[step, message_id] = count + 1, self._clock()
            return count + 1

    def purge(self, older_than_ms: int, limit: int) -> int:
        with self._state.lock:
            before = self._clock() - older_than_ms
            old = (message for message, (_, at) in self._state.deliveries.items() if at < before)
            purged = list(islice(old, limit))
            for message in purged:
                del self._state.deliveries[message]
            return len(purged)
