"""A simple model of the stores: the answers that a backend under test must give, computed as plainly as possible."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from celery_sagas.stores.instances import place
from celery_sagas.stores.records import (
    ID,
    KEPT_MOST_MS,
    KEY,
    AuditEntry,
    Change,
    Effects,
    Entry,
    Handling,
    Lookup,
    NewRecord,
    OutboxRow,
    Record,
)
from celery_sagas.stores.switches import Switch
from celery_sagas.testing.clock import Clock

#: What a commit comes to, beside the reasons of a RevisionConflict. An empty set of answers: nothing stands in its way.
DONE = "done"
ALREADY_HANDLED = "already handled"


@dataclass
class Instance:
    """An instance, its alternate keys and its lock."""

    record: Record
    keys: set[tuple[str, str]]
    tags: set[tuple[str, str]]
    lock_owner: str = ""
    until: int = 0

    def paths(self) -> set[tuple[str, str, str]]:
        """Return everything that must be unique, under the name of the saga."""
        return {(self.record.saga, *key) for key in {(KEY, self.record.key), *self.keys}}


@dataclass
class ModelRow:
    """An outgoing row and its lease."""

    message: OutboxRow
    due_since: int
    token: str = ""
    leased_until: int = 0


class Model:
    """Lists and loops. A commit returns all answers that would be right, and takes effect if nothing is wrong."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.instances: dict[str, Instance] = {}
        self.journal: dict[tuple[str, str], Entry] = {}
        self.audit: dict[str, AuditEntry] = {}
        self.switches: dict[str, Switch] = {}
        self.rows: dict[str, ModelRow] = {}
        self.deliveries: dict[tuple[str, str], tuple[int, int]] = {}  #: count and time

    def find(self, lookup: Lookup, handling: Handling) -> tuple[Record | None, Entry | None]:
        """Answer as ``SagaStore.find``, but for the new id."""
        found = [self._shown(instance) for instance in self.instances.values() if _matches(instance, lookup)]
        entries = [
            self.journal[step, handling.message_id] for step in handling.steps if (step, handling.message_id) in self.journal
        ]
        return found[0] if found else None, entries[0] if entries else None

    def insert(self, record: NewRecord, effects: Effects) -> set[str]:
        """Answer as ``SagaStore.insert``."""
        wrong = self._handled(effects.entry) or self._taken(record.names, {(KEY, record.key), *record.keys})
        if wrong:
            return wrong
        texts, now = (record.schema_version, record.data, record.pending), self._clock()
        self.instances[record.id] = Instance(
            Record(record.id, record.names[0], record.key, 1, *texts, now, now), set(record.keys), set(record.tags)
        )
        return self._write(effects)

    def update(self, record: Record, change: Change, effects: Effects) -> set[str]:
        """Answer as ``SagaStore.update``."""
        wrong = self._handled(effects.entry) or (
            self._changed(record, effects.lock_owner) | self._taken(change.names, change.added_keys)
        )
        if wrong:
            return wrong
        instance = self.instances[record.id]
        instance.keys = instance.keys - set(change.removed_keys) | set(change.added_keys)
        instance.tags = instance.tags - set(change.removed_tags) | set(change.added_tags)
        instance.lock_owner = ""
        instance.record = instance.record._replace(
            version=record.version + 1,
            schema_version=change.schema_version,
            data=change.data,
            pending=change.pending,
            updated_at=self._clock(),
        )
        self._cancel([id for id, row in self.rows.items() if id in change.cancelled and row.message.instance_id == record.id])
        return self._write(effects)

    def delete(self, record: Record, effects: Effects) -> set[str]:
        """Answer as ``SagaStore.delete``."""
        wrong = self._handled(effects.entry) or self._changed(record, effects.lock_owner)
        if wrong:
            return wrong
        del self.instances[record.id]
        self._cancel([id for id, row in self.rows.items() if row.message.instance_id == record.id and row.message.kind != "sent"])
        return self._write(effects)

    def record(self, effects: Effects) -> set[str]:
        """Answer as ``SagaStore.record``."""
        return self._handled(effects.entry) or self._write(effects)

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        """Answer as ``SagaStore.lock``."""
        instance = self.instances.get(record.id)
        if instance is None or self._shown(instance).locked_by not in ("", lock_owner):
            return False
        instance.lock_owner, instance.until = lock_owner, self._clock() + for_ms
        return True

    def listed(self, name: str, tag: tuple[str, str] | None = None) -> list[str]:
        """Return the ids of the instances under a name, as ``Instances.page`` lists them, or ``Instances.tagged``."""
        found = [each for each in self.instances.values() if each.record.saga == name and (tag is None or tag in each.tags)]
        places = [(place(each.record.updated_at, each.record.id) if tag is None else "", each.record.id) for each in found]
        return [id for _, id in sorted(places, reverse=True)]

    def due(self, cause: Entry | None = None) -> list[ModelRow]:
        """Return the rows that are due, the longest due first."""
        due = [row for row in self.rows.values() if row.due_since <= self._clock() and _decided(row, cause)]
        return sorted(due, key=lambda row: row.due_since)

    def lease(self, ids: Iterable[str], token: str, lease_ms: int) -> None:
        """Let the rows be claimed."""
        for id in ids:
            row = self.rows[id]
            row.token, row.leased_until = token, self._clock() + lease_ms
            row.due_since = row.leased_until

    def leased(self, cause: Entry) -> int:
        """Answer as ``Outbox.count_leased``."""
        leased = [row for row in self.rows.values() if row.leased_until > self._clock() and _decided(row, cause)]
        return sum(not row.message.attempts for row in leased)

    def held(self, token: str, ids: Sequence[str]) -> list[ModelRow]:
        """Return the rows whose lease is, or was last, this token's."""
        return [row for id, row in self.rows.items() if id in ids and row.token == token]

    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        """Answer as ``Outbox.confirm``."""
        rows = self.held(token, ids)
        for row in rows:
            if keep_ms:
                self._keep(row, keep_ms)
            else:
                del self.rows[row.message.id]
        return len(rows)

    def _keep(self, row: ModelRow, keep_ms: int) -> None:
        now, tried_at = self._clock(), row.message.tried_at or self._clock()
        row.message = row.message._replace(attempts=0, tried_at=tried_at)
        row.due_since, row.leased_until = now + max(keep_ms, min(now - tried_at, KEPT_MOST_MS)), 0

    def tried(self) -> list[str]:
        """Return the ids of the rows that ``Outbox.tried`` returns."""
        return [id for _, id in sorted((row.message.tried_at, id) for id, row in self.rows.items() if row.message.tried_at)]

    def following(self, ids: Sequence[str], delay_ms: int) -> list[OutboxRow]:
        """Return rows that are there, each with a next message."""
        rows = [row.message for id, row in self.rows.items() if id in ids]
        due_at = self._clock() + delay_ms
        return [
            row._replace(message_id=f"{row.message_id}+", payload="next", due_at=due_at, attempts=0, tried_at=0) for row in rows
        ]

    def reschedule(self, token: str, rows: Sequence[OutboxRow]) -> int:
        """Answer as ``Outbox.reschedule``."""
        held = {row.message.id for row in self.held(token, [row.id for row in rows])}
        for row in rows:
            if row.id in held:
                self.rows[row.id] = ModelRow(row, row.due_at)
        return len(held)

    def release(self, token: str, ids: Sequence[str], delay_ms: int) -> int:
        """Answer as ``Outbox.release``."""
        rows = self.held(token, ids)
        for row in rows:
            row.due_since, row.leased_until = self._clock() + delay_ms, 0
        return len(rows)

    def fail(self, token: str, id: str, delay_ms: int) -> bool:
        """Answer as ``Outbox.fail``."""
        rows = self.held(token, [id])
        for row in rows:
            tried_at = row.message.tried_at or self._clock()
            row.message = row.message._replace(attempts=row.message.attempts + 1, tried_at=tried_at)
            row.due_since, row.leased_until = self._clock() + delay_ms, 0
        return bool(rows)

    def deliver(self, step: str, message_id: str) -> int:
        """Answer as ``Deliveries.count``."""
        count, _ = self.deliveries.get((step, message_id), (0, 0))
        self.deliveries[step, message_id] = count + 1, self._clock()
        return count + 1

    def forget_deliveries(self, older_than_ms: int) -> int:
        """Answer as ``Deliveries.purge`` without a limit."""
        old = [message for message, (_, at) in self.deliveries.items() if at < self._clock() - older_than_ms]
        for message in old:
            del self.deliveries[message]
        return len(old)

    def old(self, older_than_ms: int) -> list[tuple[str, str]]:
        """Return what ``Journal.purge`` may take."""
        return [handling for handling, entry in self.journal.items() if entry.at < self._clock() - older_than_ms]

    def forget(self, handlings: Iterable[tuple[str, str]]) -> None:
        """Let entries be purged."""
        for handling in handlings:
            del self.journal[handling]

    def forget_audit(self, older_than_ms: int) -> int:
        """Answer as ``Audit.purge`` without a limit."""
        old = [id for id, entry in self.audit.items() if entry.at < self._clock() - older_than_ms]
        for id in old:
            del self.audit[id]
        return len(old)

    def audited(self, names: Sequence[str] = (), key: str | None = None) -> list[AuditEntry]:
        """Return the entries of all pages of ``Audit.recent``."""
        wanted = [each for each in self.audit.values() if (not names or each.saga in names) and key in (None, each.key)]
        return sorted(wanted, key=lambda each: (each.at, each.id), reverse=True)

    def switch(self, how: str, name: str, entry: AuditEntry) -> bool:
        """Answer as ``Switches.hold`` or ``Switches.release``, for few names and a new entry."""
        if (name in self.switches) == (how == "hold"):
            return False
        if how == "hold":
            self.switches[name] = Switch(name, entry.actor, entry.reason, self._clock())
        else:
            del self.switches[name]
        self.audit[entry.id] = entry._replace(at=self._clock())
        return True

    def history(self, names: Sequence[str], key: str) -> list[Entry]:
        """Answer as ``Journal.history`` without a limit; the order of one time and version is open."""
        entries = [entry for entry in self.journal.values() if entry.saga in names and entry.key == key]
        return sorted(entries, key=lambda entry: (entry.at, entry.version))

    def _shown(self, instance: Instance) -> Record:
        return instance.record._replace(locked_by=instance.lock_owner if instance.until > self._clock() else "")

    def _handled(self, entry: Entry) -> set[str]:
        before = self.journal.get((entry.step, entry.message_id))
        if before is None:
            return set()
        return {DONE} if before.attempt == entry.attempt else {ALREADY_HANDLED}

    def _changed(self, record: Record, lock_owner: str) -> set[str]:
        instance = self.instances.get(record.id)
        if instance is None:
            return {"version"}
        stale = {"version"} if instance.record.version != record.version else set()
        locked = {"locked"} if self._shown(instance).locked_by not in ("", lock_owner) else set()
        return stale | locked

    def _taken(
        self,
        names: Sequence[str],
        keys: Iterable[tuple[str, str]],
    ) -> set[str]:
        """Answer "unique" if an instance holds one of the keys."""
        held = {path for instance in self.instances.values() for path in instance.paths()}
        return {"unique"} if any((name, *key) in held for name in names for key in keys) else set()

    def _write(self, effects: Effects) -> set[str]:
        entry, now = effects.entry, self._clock()
        self.journal[entry.step, entry.message_id] = entry._replace(at=now)
        if effects.audit:
            self.audit[effects.audit.id] = effects.audit._replace(at=now)
        for new in effects.outgoing:
            cause = (entry.instance_id, entry.step, entry.message_id)
            message = OutboxRow(new.id, new.kind, new.message_id, new.task, new.payload, new.due_at, 0, *cause)
            until = now + effects.grace_ms
            self.rows[new.id] = ModelRow(message, new.due_at) if new.due_at else ModelRow(message, until, effects.owner, until)
        return {DONE}

    def _cancel(self, ids: Iterable[str]) -> None:
        for id in ids:
            del self.rows[id]


def _matches(instance: Instance, lookup: Lookup) -> bool:
    if lookup.property == ID:
        return instance.record.id == lookup.value and instance.record.saga in lookup.names
    return any((name, lookup.property, lookup.value) in instance.paths() for name in lookup.names)


def _decided(row: ModelRow, cause: Entry | None) -> bool:
    return cause is None or (row.message.step == cause.step and row.message.cause == cause.message_id)
