"""The arguments and results of stores: encoded text and plain values, never live objects.

All times are integer milliseconds since the epoch. Everything but a due time comes from the store's own clock.
"""

from typing import Final, NamedTuple

from celery_sagas.core.correlation import ID, KEY

__all__ = [
    "BEGINNINGS",
    "BOUND_KINDS",
    "ID",
    "KEPT_KINDS",
    "KEPT_MOST_MS",
    "KEY",
    "LOOKED_AT",
    "LOOK_MS",
    "SERIES",
    "AuditEntry",
    "Change",
    "DeadLetter",
    "Effects",
    "Entries",
    "Entry",
    "Found",
    "Handling",
    "Lookup",
    "NewRecord",
    "OutboxGlance",
    "OutboxPage",
    "OutboxRow",
    "OutboxTally",
    "Outgoing",
    "Record",
    "Renamed",
    "Sends",
    "has_begun",
    "outbox_row",
    "place_of",
]

#: The outcomes of a message with which an instance may begin.
BEGINNINGS: Final = ("started", "completed")
#: The kind of the outgoing row of a series: once it was published, ``Outbox.reschedule`` gives it the next occurrence.
SERIES: Final = "series"
#: The kinds of outgoing rows that stay when they were published, until the commit that handles their message cancels them.
KEPT_KINDS: Final = ("scheduled", "deadline")
#: The longest time after which such a row is due again, in milliseconds; ``Outbox.confirm`` may be given a longer one.
KEPT_MOST_MS: Final = 86_400_000
#: For how long at most a relay leaves a row to others whose step it does not know, in milliseconds; ``Outbox.overdue`` looks as
#: far ahead, and at so many rows at most.
LOOK_MS: Final = 60_000
LOOKED_AT: Final = 5_000
#: The kinds of outgoing rows that end with their instance.
BOUND_KINDS: Final = (*KEPT_KINDS, SERIES)


class Lookup(NamedTuple):
    """A look-up of an instance."""

    names: tuple[str, ...]  #: the saga's stored name first, then its former names
    property: str  #: ``KEY``, ``ID`` or the name of an alternate key
    value: str  #: the canonical text
    has_alternate_keys: bool = True  #: whether the saga has alternate keys, or may have some


class Renamed(NamedTuple):
    """The result of one call of a rename."""

    moved: int  #: how many instances have the name now
    conflicts: tuple[tuple[str, str], ...]  #: id and key of each that keeps its former name; an empty key could not be read
    after: str  #: where the next call goes on; empty: that was all


class Handling(NamedTuple):
    """The message that is being handled, for the journal's look-up."""

    steps: tuple[str, ...]  #: the step's name first, then its former names
    message_id: str


class Record(NamedTuple):
    """An instance as it was found; it is passed back verbatim to update or delete."""

    id: str  #: surrogate, stable over all updates
    saga: str  #: the stored name, perhaps a former one
    key: str
    version: int  #: from 1, plus one with each update
    schema_version: int
    data: str  #: the state, as JSON text
    pending: str  #: the pending map, as JSON text
    created_at: int
    updated_at: int
    locked_by: str = ""  #: the lock owner of a lock that has not expired, else empty


class NewRecord(NamedTuple):
    """An instance to insert; its version will be 1."""

    id: str
    names: tuple[str, ...]  #: the stored name first, then the former names that must not hold the same keys
    key: str
    schema_version: int
    data: str
    pending: str
    keys: tuple[tuple[str, str], ...]  #: alternate keys as (property, value), sorted; a null one is left out
    tags: tuple[tuple[str, str], ...] = ()  #: by which pages list it, as (property, value), sorted


class Change(NamedTuple):
    """The changes that an update writes; alternate keys and tags come as a difference, sorted."""

    names: tuple[str, ...]  #: the stored name first, then the former names that must not hold the added keys
    schema_version: int
    data: str
    pending: str
    added_keys: tuple[tuple[str, str], ...] = ()
    removed_keys: tuple[tuple[str, str], ...] = ()
    cancelled: tuple[str, ...] = ()  #: ids of outgoing rows that this instance decided earlier and no longer wants
    added_tags: tuple[tuple[str, str], ...] = ()
    removed_tags: tuple[tuple[str, str], ...] = ()


class Entry(NamedTuple):
    """One line of the journal: a step handled a message, with this outcome."""

    step: str
    message_id: str
    attempt: str  #: new for every run of the handler, which distinguishes a replay of a lost reply from a second run
    outcome: str  #: "started", "handled", "completed", "ignored", "missing", "deferred", "retried", "undone" or "failed"
    saga: str
    key: str  #: empty where the message named no key
    instance_id: str  #: empty where there was no instance
    version: int  #: of the instance after the message; 0 where there was none
    #: JSON text: what was sent, why it was ignored; perhaps what it has changed, the message, the final state, and what the step
    #: has returned, for whoever asks it.
    detail: str
    at: int = 0  #: set by the store


class Entries(NamedTuple):
    """The answer to one call of ``Journal.recent``."""

    entries: tuple[Entry, ...]  #: the newest first
    after: str  #: where the next call goes on; empty: that was all
    #: All entries that were committed after this time have been looked at, by this call and those before it; 0: all of them.
    since: int


def has_begun(entry: Entry) -> bool:
    """Return whether an instance began with the message of an entry; it may have completed at once."""
    return entry.version == 1 and entry.outcome in BEGINNINGS


class Outgoing(NamedTuple):
    """A message that a commit decides to send."""

    id: str  #: of the row
    kind: str  #: "sent", "scheduled", "deadline" or "series"; completing the instance removes those of ``BOUND_KINDS``
    message_id: str  #: the task id under which it is published
    task: str
    payload: str  #: the serialized message, as JSON text; opaque to the store
    due_at: int = 0  #: not to be published before; 0: at once, by the process that commits


class AuditEntry(NamedTuple):
    """An entry of the audit: what an operator has done to an instance, to a dead letter, or to a step, and why."""

    id: str  #: new for every action; the same if an operator repeats one on a dead letter, for the same reason
    actor: str
    action: str
    reason: str
    saga: str  #: this and the key: those of the commit's journal entry
    key: str  #: empty where there was no instance
    instance_id: str  #: likewise
    version: int  #: of the instance after the action; 0 where there was none
    detail: str  #: JSON text; opaque to the store
    at: int = 0  #: set by the store


class Effects(NamedTuple):
    """The effects of a commit besides the instance."""

    entry: Entry
    outgoing: tuple[Outgoing, ...] = ()
    owner: str = ""  #: the lease token under which this process will publish the outgoing rows
    grace_ms: int = 0  #: how long that first lease lasts
    lock_owner: str = ""  #: the lock under which the commit runs, else empty
    audit: AuditEntry | None = None  #: what an operator has done with it; ``None`` where it handles a message


class Sends(NamedTuple):
    """What is sent by the removal of a batch: all or nothing, and with it."""

    outgoing: tuple[Outgoing, ...]
    step: str  #: the aggregator
    cause: str  #: the token of the lease
    owner: str = ""  #: the lease token under which this process will publish the outgoing rows
    grace_ms: int = 0  #: how long that first lease lasts


class OutboxRow(NamedTuple):
    """An outgoing message under a lease."""

    id: str
    kind: str
    message_id: str
    task: str
    payload: str
    due_at: int
    attempts: int  #: how often publishing it has failed
    instance_id: str
    step: str  #: the step, or the aggregator, that decided it
    cause: str  #: the message id, or the token of the flush, that decided it
    tried_at: int = 0  #: when it was published first, or first could not be published; 0: it was never tried


class OutboxGlance(NamedTuple):
    """An outgoing message as operators see it: without its payload."""

    id: str
    kind: str
    message_id: str
    task: str
    due_at: int
    attempts: int  #: how often publishing it has failed
    instance_id: str
    step: str  #: the step, or the aggregator, that decided it
    cause: str
    tried_at: int
    available_at: int  #: from when on it may be claimed
    leased_until: int  #: 0: it is under no lease
    error: str  #: why publishing it failed last

    @property
    def place(self) -> str:
        """The row's place in the order of ``Outbox.tried``, as text that sorts so."""
        return place_of(self.tried_at, self.id)

    @property
    def due_place(self) -> str:
        """The row's place in the order of ``Outbox.overdue``, as text that sorts so."""
        return place_of(self.available_at, self.id)


def place_of(at: int, id: str) -> str:
    """Return a place in an order of times in milliseconds, and of ids of one time, as text that sorts so."""
    return f"{at:016d}:{id}"


class OutboxPage(NamedTuple):
    """The answer to one call of ``Outbox.overdue``."""

    rows: list[OutboxGlance]
    after: str  #: where the next call goes on; empty: that was all


class OutboxTally(NamedTuple):
    """How many outgoing messages there are."""

    due: int
    oldest_due_at: int  #: when the longest due one became due; 0: none is
    tried: int  #: that were published and are kept, or have failed


def outbox_row(outgoing: Outgoing, instance_id: str, step: str, cause: str) -> OutboxRow:
    """Return the row that stores an outgoing message."""
    return OutboxRow(*outgoing, 0, instance_id, step, cause)


class Found(NamedTuple):
    """The answer to a find."""

    record: Record | None
    handled: Entry | None  #: the journal's entry of this very message, if it was handled before
    new_id: str  #: for what the message writes: its attempt, its outgoing rows, and the instance that it creates


class DeadLetter(NamedTuple):
    """A message that failed permanently, or an item that an aggregator has rejected."""

    id: str
    task: str  #: or the aggregator
    message_id: str  #: or the item's id
    saga: str
    key: str  #: or the item's group
    error: str  #: the error's class name
    text: str
    traceback: str
    payload: str  #: the message, or the item, as JSON text
    at: int = 0  #: set by the store
    number: int = 0  #: of the item in its buffer; 0: it is a message
    buffered_at: int = 0  #: when the item was inserted
