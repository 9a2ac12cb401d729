"""Saga instances in memory."""

from collections.abc import Callable, Sequence

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.errors import AlreadyHandled, RevisionConflict
from celery_sagas.stores.memory.state import KeyPath, MemoryState, MemoryStore, new_row
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import (
    BOUND_KINDS,
    ID,
    KEY,
    Change,
    Effects,
    Entry,
    Found,
    Handling,
    Lookup,
    NewRecord,
    Record,
    Renamed,
    outbox_row,
)


class MemorySagaStore(MemoryStore, SagaStore):
    """Saga instances over dictionaries; the lock is held for the whole of each operation."""

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        with self._state.lock:
            return Found(self._record(lookup), self._handled(handling), time_ordered_id())

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._commit(effects, lambda now: _insert(self._state, record, now))

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._commit(effects, lambda now: _update(self._state, record, change, effects.lock_owner, now))

    def delete(self, record: Record, effects: Effects) -> None:
        self._commit(effects, lambda now: _delete(self._state, record, effects.lock_owner, now))

    def record(self, effects: Effects) -> None:
        self._commit(effects, lambda now: None)

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        with self._state.lock:
            now, current = self._clock(), self._state.instances.get(record.id)
            if current is None or current.saga != record.saga or self._state.locked_by(record.id, now) not in ("", lock_owner):
                return False
            self._state.locks[record.id] = lock_owner, now + for_ms
            return True

    def count(self, names: Sequence[str]) -> dict[str, int]:
        with self._state.lock:
            return {name: len(self._state.instances.places(name)) for name in names}

    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        with self._state.lock:
            return _rename_instances(self._state, name, former, limit, after)

    def _commit(self, effects: Effects, change: Callable[[int], None]) -> None:
        """Make a change and write its effects, unless this attempt has committed before.

        All checks come before the first write, and no write can fail.
        """
        with self._state.lock:
            if _is_replay(self._state, effects.entry):
                return
            if _is_known(self._state, effects):  # as a primary key would
                raise RevisionConflict(effects.entry.saga, effects.entry.key, "unique")
            now = self._clock()
            change(now)
            _write_effects(self._state, effects, now)

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


def _is_replay(state: MemoryState, entry: Entry) -> bool:
    """Return whether this attempt has committed before.

    Raises:
        AlreadyHandled: Another attempt has committed.
    """
    handled = state.journal.get((entry.step, entry.message_id))
    if handled is not None and handled.attempt != entry.attempt:
        raise AlreadyHandled(entry.step, entry.message_id)
    return handled is not None


def _is_known(state: MemoryState, effects: Effects) -> bool:
    """Return whether an outgoing row, or the audit's entry, has the id of another one."""
    is_audited = effects.audit is not None and effects.audit.id in state.audit
    return is_audited or any(outgoing.id in state.outbox for outgoing in effects.outgoing)


def _write_effects(state: MemoryState, effects: Effects, now: int) -> None:
    """Write the entries and the outgoing rows: under their first lease, unless they wait for their due time."""
    entry = effects.entry
    if effects.audit is not None:
        state.audit[effects.audit.id] = effects.audit._replace(at=now)
    state.journal[entry.step, entry.message_id] = entry._replace(at=now)
    for outgoing in effects.outgoing:
        message = outbox_row(outgoing, entry.instance_id, entry.step, entry.message_id)
        state.outbox.add(new_row(message, effects.owner, now + effects.grace_ms))


def _insert(state: MemoryState, record: NewRecord, now: int) -> None:
    """Insert an instance with its key and its alternate keys, if all of them are free."""
    keys = ((KEY, record.key), *record.keys)
    if record.id in state.instances or _taken(state, record.names, keys):
        raise RevisionConflict(record.names[0], record.key, "unique")
    state.instances.put(_first_version(record, now), frozenset(record.tags))
    _add_keys(state, record.names[0], record.id, keys)


def _update(state: MemoryState, record: Record, change: Change, lock_owner: str, now: int) -> None:
    """Change the instance that was found, its alternate keys by what is removed and added, and remove what is cancelled."""
    current = _unchanged(state, record, lock_owner, now)
    if _taken(state, change.names, change.added_keys):
        raise RevisionConflict(record.saga, record.key, "unique")
    for path in _held(state, current, change.removed_keys):
        del state.keys[path]
    _add_keys(state, current.saga, current.id, change.added_keys)
    tags = state.instances.tags(current.id) - {*change.removed_tags} | {*change.added_tags}
    state.instances.put(_next_version(current, change, now), tags)
    state.locks.pop(current.id, None)
    for id in change.cancelled:
        state.outbox.remove_of_instance(current.id, id)


def _delete(state: MemoryState, record: Record, lock_owner: str, now: int) -> None:
    """Remove the instance that was found, its keys, and the outgoing rows that end with it."""
    current = _unchanged(state, record, lock_owner, now)
    state.instances.remove(current.id)
    state.locks.pop(current.id, None)
    state.keys = {path: id for path, id in state.keys.items() if id != current.id}
    for row in state.outbox.of_instance(current.id):
        if row.message.kind in BOUND_KINDS:
            state.outbox.remove(row.message.id)


def _rename_instances(state: MemoryState, name: str, former: str, limit: int, after: str) -> Renamed:
    """Move instances that follow an id to another name of their saga, unless a key of theirs is taken there."""
    ids = sorted(record.id for record in state.instances if record.saga == former and record.id > after)
    page = ids[:limit]
    conflicts = tuple((id, state.instances[id].key) for id in page if not _rename(state, state.instances[id], name))
    return Renamed(len(page) - len(conflicts), conflicts, page[-1] if len(ids) > limit else "")


def _rename(state: MemoryState, record: Record, name: str) -> bool:
    paths = [path for path, id in state.keys.items() if id == record.id]
    keys = [(property, value) for _, property, value in paths]
    if _taken(state, (name,), keys):
        return False
    for path in paths:
        del state.keys[path]
    _add_keys(state, name, record.id, keys)
    state.instances.put(record._replace(saga=name), state.instances.tags(record.id))
    return True


def _unchanged(state: MemoryState, record: Record, lock_owner: str, now: int) -> Record:
    """Return the instance, or raise RevisionConflict if it has changed since, or another owner has locked it."""
    current = state.instances.get(record.id)
    if current is None or (current.version, current.saga) != (record.version, record.saga):
        raise RevisionConflict(record.saga, record.key, "version")
    if state.locked_by(record.id, now) not in ("", lock_owner):
        raise RevisionConflict(record.saga, record.key, "locked")
    return current


def _taken(state: MemoryState, names: Sequence[str], keys: Sequence[tuple[str, str]]) -> bool:
    """Return whether one of the keys is held under any of the names."""
    paths = ((name, *key) for name in names for key in keys)
    return any(path in state.keys for path in paths)


def _held(state: MemoryState, record: Record, keys: Sequence[tuple[str, str]]) -> list[KeyPath]:
    """Return the paths of those keys that the instance holds itself."""
    paths = [(record.saga, *key) for key in keys]
    return [path for path in paths if state.keys.get(path) == record.id]


def _add_keys(state: MemoryState, saga: str, id: str, keys: Sequence[tuple[str, str]]) -> None:
    for property, value in keys:
        state.keys[saga, property, value] = id


def _first_version(record: NewRecord, now: int) -> Record:
    return Record(
        id=record.id,
        saga=record.names[0],
        key=record.key,
        version=1,
        schema_version=record.schema_version,
        data=record.data,
        pending=record.pending,
        created_at=now,
        updated_at=now,
    )


def _next_version(current: Record, change: Change, now: int) -> Record:
    return current._replace(
        version=current.version + 1,
        schema_version=change.schema_version,
        data=change.data,
        pending=change.pending,
        updated_at=now,
    )
