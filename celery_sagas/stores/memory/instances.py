"""Changes of instances and their keys in memory: each function makes all of its checks before its first write.

The functions expect that their caller holds the lock.
"""

from collections.abc import Sequence

from celery_sagas.errors import RevisionConflict
from celery_sagas.stores.memory.state import KeyPath, MemoryState
from celery_sagas.stores.records import KEY, Change, NewRecord, Record, Renamed

#: The kinds of outgoing rows that end with their instance.
BOUND_KINDS = ("scheduled", "deadline")


def insert_instance(state: MemoryState, record: NewRecord, now: int) -> None:
    """Insert an instance with its key and its alternate keys, if all of them are free."""
    keys = ((KEY, record.key), *record.keys)
    if record.id in state.instances or _taken(state, record.names, keys):
        raise RevisionConflict(record.names[0], record.key, "unique")
    state.instances[record.id] = _first_version(record, now)
    _add_keys(state, record.names[0], record.id, keys)


def update_instance(state: MemoryState, record: Record, change: Change, lock_owner: str, now: int) -> None:
    """Change the instance that was found, its alternate keys by what is removed and added, and remove what is cancelled."""
    current = _unchanged(state, record, lock_owner, now)
    if _taken(state, change.names, change.added_keys):
        raise RevisionConflict(record.saga, record.key, "unique")
    for path in _held(state, current, change.removed_keys):
        del state.keys[path]
    _add_keys(state, current.saga, current.id, change.added_keys)
    state.instances[current.id] = _next_version(current, change, now)
    state.locks.pop(current.id, None)
    for id in change.cancelled:
        state.outbox.remove_of_instance(current.id, id)


def delete_instance(state: MemoryState, record: Record, lock_owner: str, now: int) -> None:
    """Remove the instance that was found, its keys, and the outgoing rows that end with it."""
    current = _unchanged(state, record, lock_owner, now)
    del state.instances[current.id]
    state.locks.pop(current.id, None)
    state.keys = {path: id for path, id in state.keys.items() if id != current.id}
    for row in state.outbox.of_instance(current.id):
        if row.message.kind in BOUND_KINDS:
            state.outbox.remove(row.message.id)


def rename_instances(state: MemoryState, name: str, former: str, limit: int, after: str) -> Renamed:
    """Move instances that follow an id to another name of their saga, unless a key of theirs is taken there."""
    ids = sorted(id for id, record in state.instances.items() if record.saga == former and id > after)
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
    state.instances[record.id] = record._replace(saga=name)
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
