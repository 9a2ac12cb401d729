"""Instances in SQL."""

from collections.abc import Mapping, Sequence

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.errors import AlreadyHandled, RevisionConflict, StoreError, StoreUnavailable
from celery_sagas.stores.operations import Commit, Delete, Find, Insert, Update, Write
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import Change, Effects, Entry, Found, Handling, Lookup, NewRecord, Record, Renamed
from celery_sagas.stores.sql.connection.database import StatementRunner
from celery_sagas.stores.sql.connection.errors import Fault
from celery_sagas.stores.sql.connection.statements import numbered
from celery_sagas.stores.sql.sagas.instances import lock_instance
from celery_sagas.stores.sql.sagas.lookups import find, find_on_postgresql, find_rivals, handled_of, record_of, sought_by
from celery_sagas.stores.sql.sagas.prepared import Prepared, preparing
from celery_sagas.stores.sql.sagas.renames import count_instances, rename
from celery_sagas.stores.sql.sagas.together import find_all, find_in_union, write_all

#: The faults that are conflicts, with the reasons of these.
_REASONS: Mapping[Fault | None, str] = {Fault.LOCKED: "deadlock", Fault.UNIQUE: "unique"}


class SqlSagaStore(SagaStore):
    """Instances in the table ``saga_instance``."""

    def __init__(self, database: StatementRunner) -> None:
        self._database = database
        self._prepare = preparing(database.name, database.prefix)
        self._find = find_on_postgresql if database.name == "postgresql" else find

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        row, *_ = self._database.fetch(self._find, *sought_by(lookup, handling))
        return Found(record_of(row), handled_of(row), time_ordered_id())

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._commit(self._prepare(Insert(record, effects)))

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._commit(self._prepare(Update(record, change, effects)))

    def delete(self, record: Record, effects: Effects) -> None:
        self._commit(self._prepare(Delete(record, effects)))

    def record(self, effects: Effects) -> None:
        self._commit(self._prepare(Write(effects)))

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        values = {"id": record.id, "found_saga": record.saga, "lock_owner": lock_owner, "for_ms": for_ms}
        return self._database.change(lock_instance, (), values) > 0

    def count(self, names: Sequence[str]) -> dict[str, int]:
        rows = self._database.fetch(count_instances, (len(names),), numbered("saga", names))
        return dict.fromkeys(names, 0) | {name: int(count) for name, count in rows}

    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        return rename(self._database, {"name": name, "former": former, "limit": limit, "after": after})

    def find_together(self, finds: Sequence[Find]) -> list[Found]:
        """Return the answers of several finds, with as few statements as the database allows.

        Raises:
            StoreError: What one of them would raise, or all; each is to be tried alone.
        """
        if self._database.name == "sqlite":  # there are no trips to be saved
            return [self.find(*find) for find in finds]
        return (find_all if self._database.name == "postgresql" else find_in_union)(self._database, finds)

    def commit_together(self, commits: Sequence[Commit]) -> list[StoreError | None]:
        """Return the answers of several commits, made in one transaction.

        Raises:
            StoreError: They were undone, because of one of them or of all; each is to be tried alone.
        """
        prepared = [self._prepare(commit) for commit in commits]
        done = self._database.run(lambda session: write_all(session, prepared))
        if done is None:
            raise StoreError("The commits were undone: one of them cannot be made, or left out, with the others.")
        return [None if number in done else self._why_refused(commit) for number, commit in enumerate(prepared)]

    def _commit(self, commit: Prepared) -> None:
        try:
            if not self._database.run(lambda session: session.change_all(commit.steps)):
                self._explain(commit)
        except StoreUnavailable as exc:
            reason = _REASONS.get(self._database.fault_of(exc), "")
            if not reason:
                raise
            self._explain(commit, reason, exc.__cause__)

    def _why_refused(self, commit: Prepared) -> StoreError | None:
        try:
            self._explain(commit)
        except StoreError as exc:
            return exc
        return None

    def _explain(self, commit: Prepared, reason: str = "", cause: BaseException | None = None) -> None:
        """Look up why a commit was refused, and raise that; a message that was committed before comes first."""
        entry, found = commit.effects.entry, commit.found
        attempt, version, lock_owner = self._find_rivals(entry, found)
        if attempt == entry.attempt:
            return
        if attempt is not None:
            raise AlreadyHandled(entry.step, entry.message_id) from cause
        if not reason:
            is_locked = lock_owner not in ("", commit.effects.lock_owner)
            reason = _reason(found, version, is_locked=is_locked, adds_keys=commit.adds_keys)
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
