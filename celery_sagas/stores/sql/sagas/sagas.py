"""Instances in SQL."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.errors import AlreadyHandled, RevisionConflict, StoreUnavailable
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import ID, KEY, Change, Effects, Entry, Found, Handling, Lookup, NewRecord, Record, Renamed
from celery_sagas.stores.sql.connection.database import Database
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.statements import Execution, numbered
from celery_sagas.stores.sql.sagas import postgresql, transactions
from celery_sagas.stores.sql.sagas.instances import lock_instance
from celery_sagas.stores.sql.sagas.lookups import find, find_rivals, handled_of, record_of
from celery_sagas.stores.sql.sagas.renames import count_instances, rename


class _Commits(Protocol):
    """The commits of a kind of database: their statements, in order."""

    def insert(self, record: NewRecord, effects: Effects) -> list[Execution]: ...
    def update(self, record: Record, change: Change, effects: Effects) -> list[Execution]: ...
    def delete(self, record: Record, effects: Effects) -> list[Execution]: ...
    def record(self, effects: Effects) -> list[Execution]: ...


#: The faults that are conflicts, with the reasons of these.
_REASONS: Mapping[Fault | None, str] = {Fault.LOCKED: "deadlock", Fault.UNIQUE: "unique"}


class SqlSagaStore(SagaStore):
    """Instances in the table ``saga_instance``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._commits: _Commits = postgresql if database.name == "postgresql" else transactions

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        steps = handling.steps if handling else ()
        values = {"property": lookup.property, "value": lookup.value, **numbered("saga", lookup.names)}
        if handling:
            values |= {"message_id": handling.message_id, **numbered("step", steps)}
        by = lookup.property if lookup.property in (ID, KEY) else ""
        row, *_ = self._database.fetch(find, (by, len(lookup.names), len(steps)), values)
        return Found(record_of(row), handled_of(row), time_ordered_id())

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._commit(self._commits.insert(record, effects), effects)

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._commit(self._commits.update(record, change, effects), effects, record, adds_keys=bool(change.added_keys))

    def delete(self, record: Record, effects: Effects) -> None:
        self._commit(self._commits.delete(record, effects), effects, record)

    def record(self, effects: Effects) -> None:
        self._commit(self._commits.record(effects), effects)

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        values = {"id": record.id, "found_saga": record.saga, "lock_owner": lock_owner, "for_ms": for_ms}
        return self._database.change(lock_instance, (), values) > 0

    def count(self, names: Sequence[str]) -> dict[str, int]:
        rows = self._database.fetch(count_instances, (len(names),), numbered("saga", names))
        return dict.fromkeys(names, 0) | {name: int(count) for name, count in rows}

    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        return rename(self._database, {"name": name, "former": former, "limit": limit, "after": after})

    def _commit(self, steps: list[Execution], effects: Effects, found: Record | None = None, *, adds_keys: bool = False) -> None:
        """Commit, and if that was refused look up why: a message that was committed before comes first."""
        reason, cause, entry = "", None, effects.entry
        try:
            if self._database.run(lambda session: session.change_all(steps)):
                return
        except StoreUnavailable as exc:
            reason, cause = _REASONS.get(self._database.fault_of(exc), ""), exc.__cause__
            if not reason:
                raise
        attempt, version, lock_owner = self._find_rivals(entry, found)
        if attempt == entry.attempt:
            return
        if attempt is not None:
            raise AlreadyHandled(entry.step, entry.message_id) from cause
        if not reason:
            is_locked = lock_owner not in ("", effects.lock_owner)
            reason = _reason(found, version, is_locked=is_locked, adds_keys=adds_keys)
        raise RevisionConflict(*((found.saga, found.key) if found else (entry.saga, entry.key)), reason) from cause

    def _find_rivals(self, entry: Entry, found: Record | None) -> tuple[str | None, int | None, str]:
        id, saga = (found.id, found.saga) if found else ("", "")
        values = {"step_0": entry.step, "message_id": entry.message_id, "id": id, "found_saga": saga}
        ((attempt, version, lock_owner),) = self._database.fetch(find_rivals, (), values)
        return attempt, version, lock_owner


def _reason(found: Record | None, version: int | None, *, is_locked: bool, adds_keys: bool) -> str:
    """Return the reason for which a commit changed nothing.

    If the instance is as it was found now, but was not when the commit came, it was locked then; unless the commit added
    keys, one of which exists under a former name.
    """
    if version != (found.version if found else None):
        return "version"
    if is_locked:
        return "locked"
    return "unique" if adds_keys or not found else "locked"
