"""Saga instances in memory."""

from collections import Counter
from collections.abc import Callable, Sequence

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.stores.memory.commits import check_rows, is_replay, write_effects
from celery_sagas.stores.memory.instances import delete_instance, insert_instance, rename_instances, update_instance
from celery_sagas.stores.memory.state import Clock, InstanceLock, MemoryState
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import ID, Change, Effects, Entry, Found, Handling, Lookup, NewRecord, Record, Renamed


class MemorySagaStore(SagaStore):
    """Saga instances over dictionaries; the lock is held for the whole of each operation."""

    def __init__(self, state: MemoryState, clock: Clock) -> None:
        self._state = state
        self._clock = clock

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        with self._state.lock:
            return Found(self._record(lookup), self._handled(handling), time_ordered_id())

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._commit(effects, lambda now: insert_instance(self._state, record, now))

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._commit(effects, lambda now: update_instance(self._state, record, change, effects.lock_owner, now))

    def delete(self, record: Record, effects: Effects) -> None:
        self._commit(effects, lambda now: delete_instance(self._state, record, effects.lock_owner, now))

    def record(self, effects: Effects) -> None:
        self._commit(effects, lambda now: None)

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        with self._state.lock:
            now, current = self._clock(), self._state.instances.get(record.id)
            if current is None or current.saga != record.saga or self._state.locked_by(record.id, now) not in ("", lock_owner):
                return False
            self._state.locks[record.id] = InstanceLock(lock_owner, now + for_ms)
            return True

    def count(self, names: Sequence[str]) -> dict[str, int]:
        with self._state.lock:
            counts = Counter(record.saga for record in self._state.instances.values())
            return {name: counts[name] for name in names}

    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        with self._state.lock:
            return rename_instances(self._state, name, former, limit, after)

    def _commit(self, effects: Effects, change: Callable[[int], None]) -> None:
        """Make a change and write its effects, unless this attempt has committed before."""
        with self._state.lock:
            if is_replay(self._state, effects.entry):
                return
            check_rows(self._state, effects)
            now = self._clock()
            change(now)
            write_effects(self._state, effects, now)

    def _record(self, lookup: Lookup) -> Record | None:
        id = self._id(lookup)
        current = self._state.instances.get(id)
        if current is None or current.saga not in lookup.names:
            return None
        return current._replace(locked_by=self._state.locked_by(id, self._clock()))

    def _id(self, lookup: Lookup) -> str:
        if lookup.property == ID:
            return lookup.value
        paths = ((name, lookup.property, lookup.value) for name in lookup.names)
        return next((self._state.keys[path] for path in paths if path in self._state.keys), "")

    def _handled(self, handling: Handling | None) -> Entry | None:
        if handling is None:
            return None
        entries = (self._state.journal.get((step, handling.message_id)) for step in handling.steps)
        return next((entry for entry in entries if entry is not None), None)
