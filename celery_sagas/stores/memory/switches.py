"""The switches in memory."""

from celery_sagas.stores.memory.state import MemoryStore
from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.switches import MOST, Switch, Switches, too_many


class MemorySwitches(MemoryStore, Switches):
    """Switches by their names."""

    def hold(self, name: str, entry: AuditEntry) -> bool:
        with self._state.lock:
            if entry.id in self._state.audit:
                return True
            switches = self._state.switches
            if name in switches:
                return False
            if len(switches) >= MOST:
                raise too_many()
            switches[name] = Switch(name, entry.actor, entry.reason, self._record(entry).at)
            return True

    def release(self, name: str, entry: AuditEntry) -> bool:
        with self._state.lock:
            if entry.id in self._state.audit:
                return True
            if self._state.switches.pop(name, None) is None:
                return False
            self._record(entry)
            return True

    def held(self) -> list[Switch]:
        with self._state.lock:
            return sorted(self._state.switches.values())

    def _record(self, entry: AuditEntry) -> AuditEntry:
        """Write an entry of the audit; return it with its time."""
        made = self._state.audit[entry.id] = entry._replace(at=self._clock())
        return made
