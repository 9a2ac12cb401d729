"""Sample records for tests of stores: a saga "order", formerly "purchase", with the alternate keys "tracking" and "email".

Every function takes the values that a test is about and fills in the rest; ids are new unless they are given.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_sagas.errors import RevisionConflict
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import (
    ID,
    KEY,
    AuditEntry,
    Change,
    DeadLetter,
    Effects,
    Entry,
    Handling,
    Lookup,
    NewRecord,
    OutboxRow,
    Outgoing,
    Record,
)

NAMES = ("order", "purchase")
STEP = "order.place_order"
#: A lease token.
RELAY = "relay"
MINUTE = 60_000
HOUR = 60 * MINUTE

Keys = tuple[tuple[str, str], ...]


def new_id() -> str:
    """Return an id that nothing else has."""
    return str(uuid.uuid4())


def by_key(key: str = "42", names: tuple[str, ...] = NAMES) -> Lookup:
    """Look an instance up by its key."""
    return Lookup(names, KEY, key)


def by_id(id: str, names: tuple[str, ...] = NAMES) -> Lookup:
    """Look an instance up by its id."""
    return Lookup(names, ID, id)


def by_tracking(value: str, names: tuple[str, ...] = NAMES) -> Lookup:
    """Look an instance up by an alternate key."""
    return Lookup(names, "tracking", value)


def new_record(
    key: str = "42",
    *,
    names: tuple[str, ...] = NAMES,
    keys: Keys = (),
    tags: Keys = (),
    data: str = '{"total": 1}',
    pending: str = '{"format": 1, "timeout": "row"}',
    id: str = "",
) -> NewRecord:
    """Make an instance to insert."""
    return NewRecord(id or new_id(), names, key, schema_version=3, data=data, pending=pending, keys=keys, tags=tags)


def change(
    *,
    data: str = '{"total": 2}',
    added: Keys = (),
    removed: Keys = (),
    cancelled: tuple[str, ...] = (),
    added_tags: Keys = (),
    removed_tags: Keys = (),
    names: tuple[str, ...] = NAMES,
) -> Change:
    """Make the change that an update writes."""
    return Change(names, 4, data, '{"request": "row"}', added, removed, cancelled, added_tags, removed_tags)


def entry(
    record: NewRecord | Record | None = None,
    *,
    step: str = STEP,
    message_id: str = "",
    attempt: str = "",
    outcome: str = "handled",
    version: int = 0,
    key: str = "",
    saga: str = NAMES[0],
) -> Entry:
    """Make a line of the journal about an instance, or about none."""
    if isinstance(record, Record):
        saga, version = record.saga, version or record.version + 1
    return Entry(
        step=step,
        message_id=message_id or new_id(),
        attempt=attempt or new_id(),
        outcome=outcome,
        saga=saga,
        key=record.key if record else key,
        instance_id=record.id if record else "",
        version=version,
        detail='{"sent": []}',
    )


def effects(
    record: NewRecord | Record | None = None,
    *outgoing: Outgoing,
    line: Entry | None = None,
    owner: str = "",
    grace_ms: int = 0,
    lock_owner: str = "",
    audit: AuditEntry | None = None,
) -> Effects:
    """Make the effects of a commit besides the instance."""
    return Effects(line or entry(record), outgoing, owner, grace_ms, lock_owner, audit)


def audited(line: Entry, *, action: str = "pause", reason: str = "the supplier is closed", id: str = "") -> AuditEntry:
    """Make the audit's entry of a commit, given its line of the journal."""
    about = (line.saga, line.key, line.instance_id, line.version)
    return AuditEntry(id or new_id(), "ann@shop", action, reason, *about, detail='{"before": null}')


def operate(backend: Backend, line: Entry | None = None, **values: str) -> AuditEntry:
    """Commit an entry of the audit without an instance; return it as it was passed."""
    line = line or entry(key="42")
    made = audited(line, **values)
    backend.sagas.record(effects(line=line, audit=made))
    return made


def outgoing(kind: str = "sent", *, due_at: int = 0, payload: str = '{"args": []}', id: str = "") -> Outgoing:
    """Make a message that a commit decides to send."""
    return Outgoing(id or new_id(), kind, message_id=new_id(), task="shop.ship", payload=payload, due_at=due_at)


def dead_letter(id: str = "", *, text: str = "no such order") -> DeadLetter:
    """Make the dead letter of a message that failed permanently."""
    return DeadLetter(
        id=id or new_id(),
        task=STEP,
        message_id=new_id(),
        saga=NAMES[0],
        key="42",
        error="InvalidMessage",
        text=text,
        traceback=f"Traceback (most recent call last):\n{text}",
        payload='{"args": []}',
    )


def found(backend: Backend, lookup: Lookup) -> Record:
    """Find an instance that must be there."""
    record = backend.sagas.find(lookup).record
    assert record is not None, f"{lookup} is not there"
    return record


def is_there(backend: Backend, lookup: Lookup) -> bool:
    """Return whether an instance is found."""
    return backend.sagas.find(lookup).record is not None


def handled(backend: Backend, line: Entry) -> Entry | None:
    """Return the journal's entry of a message."""
    return backend.sagas.find(by_key("no such key"), Handling((line.step,), line.message_id)).handled


def start(
    backend: Backend,
    key: str = "42",
    *rows: Outgoing,
    names: tuple[str, ...] = NAMES,
    keys: Keys = (),
    tags: Keys = (),
    data: str = '{"total": 1}',
    id: str = "",
) -> Record:
    """Commit a new instance, and find it."""
    record = new_record(key, names=names, keys=keys, tags=tags, data=data, id=id)
    backend.sagas.insert(record, effects(record, *rows, line=entry(record, outcome="started", version=1, saga=names[0])))
    return found(backend, by_id(record.id, names))


def update(
    backend: Backend,
    record: Record,
    *rows: Outgoing,
    added: Keys = (),
    removed: Keys = (),
    cancelled: tuple[str, ...] = (),
    added_tags: Keys = (),
    removed_tags: Keys = (),
) -> Record:
    """Commit a change of an instance, and find it again."""
    new = change(added=added, removed=removed, cancelled=cancelled, added_tags=added_tags, removed_tags=removed_tags)
    backend.sagas.update(record, new, effects(record, *rows))
    return found(backend, by_id(record.id))


def complete(backend: Backend, record: Record, *rows: Outgoing) -> Entry:
    """Commit the end of an instance; return the journal's line as it was passed."""
    line = entry(record, outcome="completed")
    backend.sagas.delete(record, effects(record, *rows, line=line))
    return line


def send(backend: Backend, *rows: Outgoing, owner: str = "", grace_ms: int = 0, line: Entry | None = None) -> Entry:
    """Commit outgoing rows without an instance; return the journal's line as it was passed."""
    line = line or entry()
    backend.sagas.record(effects(None, *rows, line=line, owner=owner, grace_ms=grace_ms))
    return line


def claim(backend: Backend, token: str = RELAY, limit: int = 1_000, lease_ms: int = MINUTE) -> list[OutboxRow]:
    """Claim the due rows."""
    return backend.outbox.claim_due(token, limit, lease_ms)


def ids(rows: list[OutboxRow] | tuple[Outgoing, ...] | list[Outgoing]) -> list[str]:
    """Return the rows' ids."""
    return [row.id for row in rows]


@contextmanager
def conflict(reason: str) -> Iterator[None]:
    """Expect a RevisionConflict with this reason."""
    with pytest.raises(RevisionConflict) as caught:
        yield
    assert caught.value.reason == reason
