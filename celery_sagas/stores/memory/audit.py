"""The audit in memory."""

from collections.abc import Sequence
from itertools import islice

from celery_sagas.stores.audit import Audit, AuditPage, page_of
from celery_sagas.stores.memory.state import MemoryStore


class MemoryAudit(MemoryStore, Audit):
    """Entries by their ids, in the order in which they were committed."""

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), key: str | None = None) -> AuditPage:
        with self._state.lock:
            return page_of(self._state.audit.values(), limit, after, names, key)

    def purge(self, older_than_ms: int, limit: int) -> int:
        with self._state.lock:
            before = self._clock() - older_than_ms
            purged = list(islice((id for id, entry in self._state.audit.items() if entry.at < before), limit))
            for id in purged:
                del self._state.audit[id]
            return len(purged)
