"""The ports of instances and of what their commits write, with encoded texts."""

from collections.abc import Sequence

from celery_sagas.stores.audit import Audit, AuditPage
from celery_sagas.stores.encoded.records import Records
from celery_sagas.stores.instances import Instances, Page
from celery_sagas.stores.journal import Journal
from celery_sagas.stores.outbox import Outbox
from celery_sagas.stores.ports import DeadLetters, SagaStore
from celery_sagas.stores.records import (
    AuditEntry,
    Change,
    DeadLetter,
    Effects,
    Entries,
    Entry,
    Found,
    Handling,
    Lookup,
    NewRecord,
    OutboxGlance,
    OutboxPage,
    OutboxRow,
    OutboxTally,
    Record,
    Renamed,
)
from celery_sagas.stores.switches import Switch, Switches


class EncodedSagas(SagaStore):
    """Instances: state, pending map, and the effects of commits."""

    def __init__(self, inner: SagaStore, records: Records) -> None:
        self._inner = inner
        self._records = records

    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        return self._records.found(self._inner.find(lookup, handling))

    def insert(self, record: NewRecord, effects: Effects) -> None:
        self._inner.insert(self._records.encode_new(record), self._records.encode_effects(effects))

    def update(self, record: Record, change: Change, effects: Effects) -> None:
        self._inner.update(record, self._records.encode_change(record.id, change), self._records.encode_effects(effects))

    def delete(self, record: Record, effects: Effects) -> None:
        self._inner.delete(record, self._records.encode_effects(effects))

    def record(self, effects: Effects) -> None:
        self._inner.record(self._records.encode_effects(effects))

    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        return self._inner.lock(record, lock_owner, for_ms)

    def count(self, names: Sequence[str]) -> dict[str, int]:
        return self._inner.count(names)

    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        return self._inner.rename(name, former, limit, after)


class EncodedInstances(Instances):
    """Pages: pending maps, and the states of those that are read. ``Glance.size`` is that of the encoded state."""

    def __init__(self, inner: Instances, records: Records) -> None:
        self._inner = inner
        self._records = records

    def page(self, name: str, limit: int, after: str = "", *, oldest_first: bool = False) -> Page:
        return self._records.page(self._inner.page(name, limit, after, oldest_first=oldest_first))

    def tagged(self, name: str, tag: tuple[str, str], limit: int, after: str = "") -> Page:
        return self._records.page(self._inner.tagged(name, tag, limit, after))

    def read(self, name: str, ids: Sequence[str]) -> list[Record]:
        return list(map(self._records.record, self._inner.read(name, ids)))

    def count(self, name: str, at_most: int, tag: tuple[str, str] | None = None) -> int:
        return self._inner.count(name, at_most, tag)

    def index(self, name: str, limit: int, after: str = "") -> str:
        return self._inner.index(name, limit, after)


class EncodedJournal(Journal):
    """The journal: the details of its entries."""

    def __init__(self, inner: Journal, records: Records) -> None:
        self._inner = inner
        self._records = records

    def outcome_of(self, names: Sequence[str], key: str) -> Entry | None:
        entry = self._inner.outcome_of(names, key)
        return entry and self._records.entry(entry)

    def history(self, names: Sequence[str], key: str, limit: int) -> list[Entry]:
        return list(map(self._records.entry, self._inner.history(names, key, limit)))

    def began(self, names: Sequence[str], within_ms: int, limit: int) -> list[str]:
        return self._inner.began(names, within_ms, limit)

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), outcomes: Sequence[str] = ()) -> Entries:
        found = self._inner.recent(limit, after, names, outcomes)
        return found._replace(entries=tuple(map(self._records.entry, found.entries)))

    def purge(self, older_than_ms: int, limit: int) -> int:
        return self._inner.purge(older_than_ms, limit)

    def oldest_at(self) -> int:
        return self._inner.oldest_at()


class EncodedOutbox(Outbox):
    """The outbox: the messages."""

    def __init__(self, inner: Outbox, records: Records) -> None:
        self._inner = inner
        self._records = records

    def claim_due(self, token: str, limit: int, lease_ms: int, cause: Entry | None = None) -> list[OutboxRow]:
        return list(map(self._records.row, self._inner.claim_due(token, limit, lease_ms, cause)))

    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        return self._inner.confirm(token, ids, keep_ms)

    def reschedule(self, token: str, rows: Sequence[OutboxRow]) -> int:
        return self._inner.reschedule(token, self._records.encode_messages(rows))

    def release(self, token: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        return self._inner.release(token, ids, delay_ms)

    def fail(self, token: str, id: str, error: str, delay_ms: int) -> bool:
        return self._inner.fail(token, id, error, delay_ms)

    def hurry(self, ids: Sequence[str]) -> int:
        return self._inner.hurry(ids)

    def read(self, ids: Sequence[str]) -> list[OutboxGlance]:
        return self._inner.read(ids)

    def tried(self, until: int, limit: int, after: str = "") -> list[OutboxGlance]:
        return self._inner.tried(until, limit, after)

    def overdue(self, before: int, limit: int, after: str = "") -> OutboxPage:
        return self._inner.overdue(before, limit, after)

    def tally(self, at_most: int) -> OutboxTally:
        return self._inner.tally(at_most)

    def time(self) -> int:
        return self._inner.time()

    def count(self) -> int:
        return self._inner.count()

    def count_leased(self, cause: Entry) -> int:
        return self._inner.count_leased(cause)


class EncodedDeadLetters(DeadLetters):
    """Dead letters: the message, or the item. Error, text and traceback stay readable."""

    def __init__(self, inner: DeadLetters, records: Records) -> None:
        self._inner = inner
        self._records = records

    def add(self, dead_letter: DeadLetter) -> None:
        self._inner.add(self._records.encode_dead_letter(dead_letter))

    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        return [self._records.dead_letter(each) for each in self._inner.list(limit, before)]

    def get(self, id: str) -> DeadLetter | None:
        found = self._inner.get(id)
        return found and self._records.dead_letter(found)

    def remove(self, id: str) -> bool:
        return self._inner.remove(id)

    def count(self) -> int:
        return self._inner.count()


class EncodedAudit(Audit):
    """The audit: the details of its entries. Actors and reasons stay readable."""

    def __init__(self, inner: Audit, records: Records) -> None:
        self._inner = inner
        self._records = records

    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), key: str | None = None) -> AuditPage:
        return self._records.audit_page(self._inner.recent(limit, after, names, key))

    def purge(self, older_than_ms: int, limit: int) -> int:
        return self._inner.purge(older_than_ms, limit)


class EncodedSwitches(Switches):
    """Switches: the details of their entries of the audit."""

    def __init__(self, inner: Switches, records: Records) -> None:
        self._inner = inner
        self._records = records

    def hold(self, name: str, entry: AuditEntry) -> bool:
        return self._inner.hold(name, self._records.encode_audited(entry))

    def release(self, name: str, entry: AuditEntry) -> bool:
        return self._inner.release(name, self._records.encode_audited(entry))

    def held(self) -> list[Switch]:
        return self._inner.held()
