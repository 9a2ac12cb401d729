"""The journal in memory."""

from collections.abc import Sequence
from itertools import islice

from celery_sagas.stores.journal import Journal
from celery_sagas.stores.memory.state import MemoryStore
from celery_sagas.stores.recent import recent_of
from celery_sagas.stores.records import Entries, Entry, has_begun


class MemoryJournal(MemoryStore, Journal):
    """Entries in the order in which they were committed."""

    def outcome_of(self, names: Sequence[str], key: str) -> Entry | None:
        with self._state.lock:
            completed = [entry for entry in self._entries(names, key) if entry.outcome == "completed"]
            return max(completed, key=_age, default=None)

    def history(self, names: Sequence[str], key: str, limit: int) -> list[Entry]:
        with self._state.lock:
            entries = sorted(self._entries(names, key), key=_age)
            return entries[max(0, len(entries) - limit) :]

    def began(self, names: Sequence[str], within_ms: int, limit: int) -> list[str]:
        with self._state.lock:
            since = self._clock() - within_ms
            entries = [entry for entry in self._state.journal.values() if entry.saga in names and has_begun(entry)]
        newest = sorted((entry for entry in entries if entry.at >= since), key=_age, reverse=True)
        return list(dict.fromkeys(entry.key for entry in newest[:limit]))

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), outcomes: Sequence[str] = ()) -> Entries:
        with self._state.lock:
            return recent_of(self._state.journal.values(), limit, after, names, outcomes)

    def purge(self, older_than_ms: int, limit: int) -> int:
        with self._state.lock:
            before = self._clock() - older_than_ms
            old = (handling for handling, entry in self._state.journal.items() if entry.at < before)
            purged = list(islice(old, limit))
            for handling in purged:
                del self._state.journal[handling]
            return len(purged)

    def oldest_at(self) -> int:
        with self._state.lock:
            return min((entry.at for entry in self._state.journal.values()), default=0)

    def _entries(self, names: Sequence[str], key: str) -> list[Entry]:
        return [entry for entry in self._state.journal.values() if entry.saga in names and entry.key == key]


def _age(entry: Entry) -> tuple[int, int]:
    return entry.at, entry.version
