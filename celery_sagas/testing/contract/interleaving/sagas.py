"""The moves of both sides of an interleaving, in a small world whose every id is fixed, so that runs can be compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from celery_sagas.stores.operations import Find, Update, Write
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Effects, Handling, NewRecord, Outgoing, Record
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import (
    MINUTE,
    NAMES,
    STEP,
    Keys,
    audited,
    by_key,
    by_tracking,
    change,
    effects,
    entry,
    found,
    new_record,
    outgoing,
)

#: Does something in a world; what it returns is compared.
Move = Callable[[Backend, "World"], object]

LEASE = 1_000
_tags = count()


@dataclass
class World:
    """An instance "42" with the tracking number "1", and the names of everything that a move may add.

    Its two rows, sent and scheduled, are due; their lease was the token "one"'s, and has ended.
    """

    tag: str = field(default_factory=lambda: f" in world {next(_tags)}")
    record: Record = field(init=False)  #: the instance "42" as both sides have found it
    has_audit: bool = True  #: of all backends in which it was made

    def __call__(self, name: str) -> str:
        """Return a name that only this world has."""
        return name + self.tag

    def tracking(self, number: str) -> Keys:
        """Return a tracking number as an alternate key."""
        return (("tracking", self(number)),)

    def instance(self, id: str, key: str, number: str = "", names: tuple[str, ...] = NAMES) -> NewRecord:
        """Return an instance that may be inserted."""
        return new_record(self(key), names=names, keys=self.tracking(number) if number else (), id=self(id))

    def effects(
        self, about: NewRecord | Record | None, message: str, attempt: str, *rows: Outgoing, lock_owner: str = ""
    ) -> Effects:
        """Return the effects of a message."""
        line = entry(about, message_id=self(message), attempt=attempt, key=self("42"))
        return effects(None, *rows, line=line, owner="one", grace_ms=LEASE, lock_owner=lock_owner)

    def row(self, id: str, kind: str = "sent") -> Outgoing:
        """Return an outgoing row."""
        row = outgoing(kind, id=self(id))
        return Outgoing(row.id, kind, row.id, row.task, row.payload)

    def arrange(self, backend: Backend, clock: Clock) -> None:
        """Make the world."""
        self.has_audit = self.has_audit and backend.has_audit
        first = self.instance("first", "42", "1")
        backend.sagas.insert(first, self.effects(first, "start", "1", self.row("sent"), self.row("scheduled", "scheduled")))
        self.record = found(backend, by_key(self("42")))
        clock.advance(LEASE + 1)

    def aftermath(self, backend: Backend, clock: Clock) -> object:
        """Return everything that can be observed, and empty the outbox."""
        lookups = [by_key(self(key)) for key in ("42", "43", "44")] + [by_tracking(self(number)) for number in ("1", "2")]
        records = [backend.sagas.find(lookup).record for lookup in lookups]
        history = [sorted(map(repr, backend.journal.history(NAMES, self(key), 99))) for key in ("42", "43", "44")]
        delivered = backend.deliveries.count(STEP, self("message"))
        audit = backend.audit.recent(99, "", NAMES, self("42")) if self.has_audit else ()
        return records, history, delivered, audit, [_drain(backend, clock, after) for after in (0, LEASE + 1, MINUTE)]


def _drain(backend: Backend, clock: Clock, after: int) -> list[str]:
    clock.advance(after)
    rows = backend.outbox.claim_due("observer", 99, MINUTE)
    backend.outbox.confirm("observer", [row.id for row in rows])
    return sorted(map(repr, rows))


def insert(backend: Backend, world: World) -> None:
    """Start "43" with the tracking number "2"."""
    record = world.instance("second", "43", "2")
    backend.sagas.insert(record, world.effects(record, "start 43", "1", world.row("by insert")))


def insert_in_another_attempt(backend: Backend, world: World) -> None:
    """Handle the message of ``insert`` once more."""
    record = world.instance("third", "43", "2")
    backend.sagas.insert(record, world.effects(record, "start 43", "2", world.row("by second insert")))


def insert_same_key(backend: Backend, world: World) -> None:
    """Start "43" by another message."""
    record = world.instance("fourth", "43")
    backend.sagas.insert(record, world.effects(record, "also starts 43", "1"))


def insert_same_tracking(backend: Backend, world: World) -> None:
    """Start "44", which takes the tracking number "2"."""
    record = world.instance("fifth", "44", "2")
    backend.sagas.insert(record, world.effects(record, "start 44", "1"))


def insert_under_former_name(backend: Backend, world: World) -> None:
    """Start "43" with the tracking number "2", as a worker that runs older code does."""
    record = world.instance("sixth", "43", "2", names=("purchase",))
    backend.sagas.insert(record, world.effects(record, "start old 43", "1"))


def update(backend: Backend, world: World) -> None:
    """Change "42", and its tracking number from "1" to "2"."""
    swap = change(data='"updated"', added=world.tracking("2"), removed=world.tracking("1"))
    backend.sagas.update(world.record, swap, world.effects(world.record, "message", "1", world.row("by update")))


def update_with_another(backend: Backend, world: World) -> None:
    """Change "42" together with the commit of another message."""
    made = world.effects(world.record, "message", "5", world.row("by update with another"))
    other = entry(message_id=world("other message"), attempt="1", key=world("44"))
    first, second = backend.many(
        [
            Update(world.record, change(data='"updated with another"'), made),
            Write(effects(None, world.row("by other"), line=other, owner="one", grace_ms=LEASE)),
        ]
    )
    assert second is None
    if first is not None:
        raise first


def update_in_another_attempt(backend: Backend, world: World) -> None:
    """Handle the message of ``update`` once more."""
    again = world.effects(world.record, "message", "2", world.row("by second update"))
    backend.sagas.update(world.record, change(data='"updated again"'), again)


def update_by_another_message(backend: Backend, world: World) -> None:
    """Change the same instance."""
    made = world.effects(world.record, "another message", "1", world.row("by rival", "scheduled"))
    backend.sagas.update(world.record, change(data='"updated by rival"'), made)


def operate(backend: Backend, world: World) -> None:
    """Change "42" as an operator, in another attempt of the message of ``update``."""
    made = world.effects(world.record, "message", "6", world.row("by operate"))
    audit = audited(made.entry, id=world("audit")) if world.has_audit else None
    backend.sagas.update(world.record, change(data='"operated"'), made._replace(audit=audit))


def operate_without_an_instance(backend: Backend, world: World) -> None:
    """Write the same entry of the audit by another message."""
    made = world.effects(None, "another message", "2")
    audit = audited(made.entry, id=world("audit")) if world.has_audit else None
    backend.sagas.record(made._replace(audit=audit))


def cancel(backend: Backend, world: World) -> None:
    """Change "42", and put another row in the place of the scheduled one."""
    swap = change(data='"cancelled"', cancelled=(world("scheduled"),))
    made = world.effects(world.record, "cancellation", "1", world.row("by cancel", "scheduled"))
    backend.sagas.update(world.record, swap, made)


def delete(backend: Backend, world: World) -> None:
    """Complete "42"."""
    backend.sagas.delete(world.record, world.effects(world.record, "completion", "1", world.row("by delete")))


def delete_in_another_attempt(backend: Backend, world: World) -> None:
    """Handle the message of ``update`` once more, and complete."""
    backend.sagas.delete(world.record, world.effects(world.record, "message", "3", world.row("by second delete")))


def restart(backend: Backend, world: World) -> None:
    """Complete "42", and start it again: it is at version 1 under another id."""
    backend.sagas.delete(world.record, world.effects(world.record, "restart", "1"))
    record = world.instance("seventh", "42", "1")
    backend.sagas.insert(record, world.effects(record, "start again", "1", world.row("by restart", "scheduled")))


def record(backend: Backend, world: World) -> None:
    """Handle the message of ``update`` without touching the instance."""
    backend.sagas.record(world.effects(None, "message", "4", world.row("by record")))


def lock(backend: Backend, world: World) -> bool:
    """Lock "42"."""
    return backend.sagas.lock(world.record, "one", MINUTE)


def lock_for_another(backend: Backend, world: World) -> bool:
    """Lock "42" for another owner."""
    return backend.sagas.lock(world.record, "two", MINUTE)


def update_locked(backend: Backend, world: World) -> None:
    """Lock "42", and change it."""
    made = world.effects(world.record, "message of the lock owner", "1", lock_owner="one")
    backend.sagas.update(world.record, change(data='"updated by the lock owner"'), made)


def rename(backend: Backend, world: World) -> None:
    """Move all instances to the other name of their saga, also those that are inserted meanwhile."""
    after, moved = "", 1
    while after or moved:
        moved, _, after = backend.sagas.rename("purchase", "order", 99, after)


def find(backend: Backend, world: World) -> object:
    """Find "42", and whether the message of ``update`` was handled."""
    return backend.sagas.find(by_key(world("42")), Handling((STEP,), world("message")))[:2]


def find_with_another(backend: Backend, world: World) -> object:
    """Find "42" together with an instance that is not there."""
    handling = Handling((STEP,), world("message"))
    first, second = backend.many([Find(by_key(world("42")), handling), Find(by_key(world("45")), handling)])
    return first[:2], second.record


def find_by_tracking(backend: Backend, world: World) -> object:
    """Find "42" by the number that ``update`` takes away from it."""
    return backend.sagas.find(by_tracking(world("1")), Handling((STEP,), world("message")))[:2]


def claim(backend: Backend, world: World) -> Sequence[str]:
    """Claim both rows."""
    return sorted(map(repr, backend.outbox.claim_due("one", 9, LEASE)))


def claim_for_another(backend: Backend, world: World) -> Sequence[str]:
    """Claim both rows for another token."""
    return sorted(map(repr, backend.outbox.claim_due("two", 9, LEASE)))


def confirm(backend: Backend, world: World) -> int:
    """Remove both rows, whose lease was "one"'s."""
    return backend.outbox.confirm("one", [world("sent"), world("scheduled")])


def release(backend: Backend, world: World) -> int:
    """Release both rows."""
    return backend.outbox.release("one", [world("sent"), world("scheduled")])


def release_for_later(backend: Backend, world: World) -> int:
    """Release both rows for later."""
    return backend.outbox.release("one", [world("sent"), world("scheduled")], MINUTE // 2)


def fail(backend: Backend, world: World) -> bool:
    """Count a failed attempt on one row."""
    return backend.outbox.fail("one", world("sent"), "broken", MINUTE // 2)


def deliver(backend: Backend, world: World) -> int:
    """Count a delivery of the message of ``update``."""
    return backend.deliveries.count(STEP, world("message"))


COMMITS: tuple[Move, ...] = (
    insert,
    insert_in_another_attempt,
    update,
    update_in_another_attempt,
    cancel,
    delete,
    record,
    update_locked,
    operate,
)
RIVALS_OF_COMMITS: tuple[Move, ...] = (
    *COMMITS,
    insert_same_key,
    insert_same_tracking,
    insert_under_former_name,
    update_by_another_message,
    operate_without_an_instance,
    delete_in_another_attempt,
    restart,
    lock,
    lock_for_another,
    claim,
    confirm,
    rename,
)
#: A rename may miss an instance that is inserted meanwhile, so no move inserts one in the place of the moved one.
RIVALS_OF_RENAMES: tuple[Move, ...] = tuple(move for move in RIVALS_OF_COMMITS if move is not restart)
READS: tuple[Move, ...] = (find, find_with_another, find_by_tracking, lock)
RIVALS_OF_READS: tuple[Move, ...] = (update, delete, restart, record, lock_for_another, update_by_another_message, rename)
LEASES: tuple[Move, ...] = (claim, confirm, release, release_for_later, fail)
RIVALS_OF_LEASES: tuple[Move, ...] = (*LEASES, claim_for_another, update, cancel, delete)

#: Each operation with the moves that are slipped in before its commands.
RACES: tuple[tuple[Move, tuple[Move, ...]], ...] = (
    *((operation, RIVALS_OF_COMMITS) for operation in (*COMMITS, update_with_another)),
    *((operation, RIVALS_OF_READS) for operation in READS),
    *((operation, RIVALS_OF_LEASES) for operation in LEASES),
    (rename, RIVALS_OF_RENAMES),
    (deliver, (deliver,)),
)
