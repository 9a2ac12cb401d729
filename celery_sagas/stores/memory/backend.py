"""The backend in memory: its ports over one state."""

import threading
from collections.abc import Mapping, Sequence

from celery_sagas.errors import ConfigurationError, UnsafeBackend
from celery_sagas.stores.health import Level, Remark, Subject
from celery_sagas.stores.memory.aggregates import MemoryAggregateStore, MemoryBuffers
from celery_sagas.stores.memory.audit import MemoryAudit
from celery_sagas.stores.memory.dead_letters import MemoryDeadLetters
from celery_sagas.stores.memory.deliveries import MemoryDeliveries
from celery_sagas.stores.memory.instances import MemoryInstances
from celery_sagas.stores.memory.journal import MemoryJournal
from celery_sagas.stores.memory.outbox import MemoryOutbox
from celery_sagas.stores.memory.sagas import MemorySagaStore
from celery_sagas.stores.memory.state import Clock, MemoryState, wall_clock
from celery_sagas.stores.memory.switches import MemorySwitches
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Record

_shared: dict[tuple[str, str], MemoryState] = {}
_shared_lock = threading.Lock()


class MemoryBackend(Backend):
    """One backend in this process's memory.

    ``memory://`` is private: every backend that is opened on it begins empty. ``memory://name`` is shared: all backends that
    are opened on the same name in this process see the same data, each that of its prefix, until the process ends.

    Args:
        url: ``memory://`` or ``memory://name``.
        prefix: Partitions the data of a shared name.
        options: There are none.
        clock: Returns the time in milliseconds since the epoch; this machine's if left out.
    """

    journal_retention_s = 7 * 86_400.0

    def __init__(self, url: str, *, prefix: str, options: Mapping[str, object] | None = None, clock: Clock | None = None) -> None:
        if options:
            raise ConfigurationError(f"{url} knows no options, got {', '.join(sorted(options))}", "Leave them out")
        self.url = url
        self._state = state = _state_of(url, prefix)
        clock = clock or wall_clock
        self.sagas = MemorySagaStore(state, clock)
        self.outbox = MemoryOutbox(state, clock)
        self.journal = MemoryJournal(state, clock)
        self.deliveries = MemoryDeliveries(state, clock)
        self.dead = MemoryDeadLetters(state, clock)
        self.aggregates = MemoryAggregateStore(state, clock)
        self.buffers = MemoryBuffers(state, clock)
        self.instances = MemoryInstances(state, clock)
        self.audit = MemoryAudit(state, clock)
        self.switches = MemorySwitches(state, clock)

    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        if processes > 1:
            raise UnsafeBackend(
                f"{self.url} is one process's memory, and the worker runs {processes} processes",
                "Set saga_backend to an SQL database, or run the worker with --pool=threads or --pool=solo",
            )
        return []

    def health(self) -> Sequence[Remark]:
        sentence = "this is one process's memory: it ends with the process, and no other process sees what is stored"
        return [Remark(Subject.SAFETY, Level.WARN, sentence, "Set saga_backend to an SQL database, or to Redis")]

    def note_app(self, name: str) -> str:
        with self._state.lock:
            before, self._state.app = self._state.app, name
        return before

    def records(self) -> list[Record]:
        """Return all instances, in the order in which they were made."""
        with self._state.lock:
            return list(self._state.instances)

    def next_due(self) -> int | None:
        """Return when the next row of the outbox, or group of an aggregator, is due; in milliseconds since the epoch."""
        with self._state.lock:
            times = [self._state.outbox.next_due(), *(buffer.due for buffer in self._state.buffers.groups.values())]
        return min((time for time in times if time is not None), default=None)

    def schema(self) -> str:
        return ""

    def close(self) -> None:
        """Keep the data of a shared name; a private one ends with the backend."""


def _state_of(url: str, prefix: str) -> MemoryState:
    name = url.partition("://")[2].strip("/")
    if not name:
        return MemoryState()
    with _shared_lock:
        return _shared.setdefault((name, prefix), MemoryState())
