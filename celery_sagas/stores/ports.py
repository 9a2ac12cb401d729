"""The ports: the interfaces of every backend. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence.

Common to all ports: every error is a ``StoreError``, never a driver's error. A store that cannot be reached, or cannot
serve, raises ``StoreUnavailable``. The backend's prefix partitions everything: what was written under another prefix does not
exist. Names, keys, values and message ids are compared byte by byte.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from celery_sagas.errors import ConfigurationError, StoreError
from celery_sagas.stores.aggregates import AggregateStore, Buffers
from celery_sagas.stores.audit import Audit
from celery_sagas.stores.health import Remark
from celery_sagas.stores.instances import Instances
from celery_sagas.stores.optional import NOT_AUDITED, NOT_KEPT, NOT_LISTED, is_set
from celery_sagas.stores.records import (
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
    OutboxRow,
    OutboxTally,
    Record,
    Renamed,
)
from celery_sagas.stores.shared import SharedTransactions


class SagaStore(ABC):
    """Instances of sagas, with compare-and-set on id and version.

    ``insert``, ``update``, ``delete`` and ``record`` are commits. A commit writes all of its parts or none: the instance, its
    alternate keys and tags, the journal entry, the outgoing rows, and the entry of the audit if it has one (see ``Audit``). Its
    journal entry is unique by (step, message id):

    * The same message and attempt again (the reply was lost, the call is repeated) returns as the first call did and writes
      nothing more.
    * Another attempt of a message that was committed raises ``AlreadyHandled`` and writes nothing.

    A commit whose instance is no longer as it was found raises ``RevisionConflict`` and writes nothing: reason ``"version"``
    (another version, another id, another name of its saga, or gone), ``"locked"`` (it is locked for another),
    ``"unique"`` (a key or an alternate key that it inserts belongs to another live instance, also under a former name of the
    saga) or ``"deadlock"`` (the database chose it as the victim of a deadlock or a lock time-out). Where a message was already
    committed, that comes first: replay or ``AlreadyHandled``, never ``RevisionConflict``.

    Each ``find`` returns a unique id (``Found.new_id``). It is the id of the attempt that follows, and of an instance that this
    inserts; the ids of its outgoing rows begin with it. So a store of several parts, between which nothing is atomic, keeps all
    of these where the find looked, and locates each by its id.

    An outgoing row without a due time is written under the lease ``effects.owner`` for ``effects.grace_ms``; one with a due time
    under no lease: it is due when its time comes.
    """

    @abstractmethod
    def find(self, lookup: Lookup, handling: Handling | None = None) -> Found:
        """Find an instance, and whether a message was handled, in one round trip that leaves no transaction open.

        A missing instance is ``None``, never an error. Every call returns a fresh copy. An instance is found under each of
        ``lookup.names``, under the id (``ID``), the key (``KEY``) or an alternate key that it holds now; an instance of another
        saga is never found. ``handled`` is the entry of ``handling.message_id`` under any of ``handling.steps``; ``None`` without
        ``handling``. ``record.locked_by`` is empty once the lock has expired.
        """

    @abstractmethod
    def insert(self, record: NewRecord, effects: Effects) -> None:
        """Commit a new instance at version 1, with its alternate keys and its tags. Any number of instances may have one tag.

        Raises:
            RevisionConflict: ``"unique"``: an instance with the key, under any of ``record.names``, or with one of the
                alternate keys, is there already.
        """

    @abstractmethod
    def update(self, record: Record, change: Change, effects: Effects) -> None:
        """Commit a change of the instance that was found: compare id and version, add one to the version.

        Id, saga name, key and ``created_at`` stay; ``updated_at`` is the store's time; a lock of ``effects.lock_owner`` ends.
        Alternate keys and tags are removed and added as ``change`` says; the outgoing rows that it cancels are removed, also
        under a lease, and one that no longer exists is passed over.
        """

    @abstractmethod
    def delete(self, record: Record, effects: Effects) -> None:
        """Commit the end of the instance that was found: compare id and version, remove it.

        Its alternate keys, which may be used by others then, and its tags go with it. So do its outgoing rows of the kinds
        "scheduled", "deadline" and "series"; those of the kind "sent" stay.
        """

    @abstractmethod
    def record(self, effects: Effects) -> None:
        """Commit a journal entry and outgoing rows without an instance."""

    @abstractmethod
    def lock(self, record: Record, lock_owner: str, for_ms: int) -> bool:
        """Lock the instance for one owner, for a time on the store's clock; whatever its version.

        While it lasts, commits under another lock owner raise ``RevisionConflict`` (``"locked"``). Locking again as the same
        lock owner restarts the time. It changes neither the version nor ``updated_at``.

        Returns:
            Whether ``lock_owner`` has it now: ``False`` if the lock of another lasts, or the instance is gone, or its saga
            has another name now.
        """

    @abstractmethod
    def count(self, names: Sequence[str]) -> dict[str, int]:
        """Count the instances that are stored under each of these names of sagas: at least one name."""

    @abstractmethod
    def rename(self, name: str, former: str, limit: int, after: str = "") -> Renamed:
        """Move at most ``limit`` instances from a former name of their saga to ``name``, each whole or not at all.

        The caller makes sure that the two names differ.

        An instance takes its key, its alternate keys and its tags along. Its id, version, times, state and pending map stay. So
        do its lock, its outgoing rows and its journal: they are known by its id, or by step and message. A commit of what was
        found under the former name raises ``RevisionConflict`` (``"version"``).

        An instance keeps its former name if one of its keys belongs to another instance under ``name``, or if it cannot be
        read: ``conflicts`` names it. Any number of calls may run at once, beside commits. After a call that was killed, begin
        again.

        Args:
            name: The stored name.
            former: An earlier one.
            limit: How many are moved at most: at least 1.
            after: ``Renamed.after`` of the call before; empty, to begin. Calls that go on until it is empty have seen every
                instance that was there all the time.
        """


class Outbox(ABC):
    """Outgoing messages that were committed and not yet confirmed.

    A row is due when its due time has come and no lease lasts on it. All calls by token touch only rows whose lease is, or
    was last, that token's; a row that another token has claimed since is left alone.
    """

    @abstractmethod
    def claim_due(self, token: str, limit: int, lease_ms: int, cause: Entry | None = None) -> list[OutboxRow]:
        """Lease at most ``limit`` due rows to ``token``, the longest due first, and commit that before returning.

        A store of several parts takes the longest due of one part after the other, each time beginning with another.

        Two claims at once never return the same row. With ``cause``: only rows that the commit of this entry
        decided. Claiming costs the same however many rows are not due.
        """

    @abstractmethod
    def confirm(self, token: str, ids: Sequence[str], keep_ms: int = 0) -> int:
        """End the lease on the rows, which were published, and remove them.

        With ``keep_ms`` the rows of ``KEPT_KINDS`` stay: they are due again after this time, or, if it has been longer since they
        were tried first, after as long as that, but not after more than a day. So a message that the broker has lost is published
        again, and one that waits in a queue seldom has copies. The commit that handles it cancels its row.

        Returns:
            How many rows were removed or kept.
        """

    @abstractmethod
    def reschedule(self, token: str, rows: Sequence[OutboxRow]) -> int:
        """Put the next messages into rows that were published.

        ``rows`` are those that were claimed, each with another message id, payload and due time. A row is the token's no more
        then: it is under no lease, is due when its due time comes, and was never tried. One that is gone is
        not written again: its instance may have ended, or cancelled it, meanwhile.

        Returns:
            How many rows were changed.
        """

    @abstractmethod
    def release(self, token: str, ids: Sequence[str], delay_ms: int = 0) -> int:
        """End the lease on the rows, so that they are due again after the delay; no attempt is counted."""

    @abstractmethod
    def fail(self, token: str, id: str, error: str, delay_ms: int) -> bool:
        """Count a failed attempt on the row, keep the error's text (its first 2,000 characters), make it due after the delay."""

    @abstractmethod
    def hurry(self, ids: Sequence[str]) -> int:
        """Have rows be due now whose time has not come: the first time, or again. A row under a lease is left alone.

        Returns:
            How many rows are due earlier.
        """

    @abstractmethod
    def read(self, ids: Sequence[str]) -> list[OutboxGlance]:
        """Return the rows with these ids, at most 500: in this order, without those that are not there."""

    @abstractmethod
    def tried(self, until: int, limit: int, after: str = "") -> list[OutboxGlance]:
        """Return rows that were published and are kept, or have failed: those that were tried first the longest time ago first.

        It costs what it returns.

        Args:
            until: They were tried first at this time, or before; milliseconds since the epoch.
            limit: How many at most: 1 to ``MOST``.
            after: ``OutboxGlance.place`` of the last one of the call before; empty, to begin.
        """

    @abstractmethod
    def overdue(self, before: int, limit: int) -> list[OutboxGlance]:
        """Return rows that were never tried though they were due before a time: those that may be claimed first come first.

        It looks at the rows that may be claimed now, or within ``LOOK_MS``, and costs what it looks at; at ``LOOKED_AT`` rows in
        all it may stop.

        Args:
            before: Milliseconds since the epoch.
            limit: How many at most: 1 to ``MOST``.
        """

    @abstractmethod
    def tally(self, at_most: int) -> OutboxTally:
        """Count the rows that are due, and those that were tried; each count stops at ``at_most``."""

    @abstractmethod
    def time(self) -> int:
        """Return the store's time, by which rows are due, in milliseconds since the epoch."""

    @abstractmethod
    def count(self) -> int:
        """Count the rows, due or not."""

    @abstractmethod
    def count_leased(self, cause: Entry) -> int:
        """Count the leased rows that the commit of this entry decided, and that a process may be publishing: their due time
        has come, and no attempt has failed.
        """


class Journal(ABC):
    """The record of handled messages. Only commits write entries."""

    @abstractmethod
    def outcome_of(self, names: Sequence[str], key: str) -> Entry | None:
        """Return the newest entry with the outcome "completed" of an instance with this key, or ``None``."""

    @abstractmethod
    def history(self, names: Sequence[str], key: str, limit: int) -> list[Entry]:
        """Return the newest ``limit`` entries of a key, oldest first; entries of one time in the order of their versions."""

    @abstractmethod
    def began(self, names: Sequence[str], within_ms: int, limit: int) -> list[str]:
        """Return the keys of the newest ``limit`` instances that began within this time, by the store's clock, newest first.

        Those count whose entry of version 1 has the outcome "started" or "completed". A key of several instances comes once.
        """

    @abstractmethod
    def recent(self, limit: int, after: str = "", names: Sequence[str] = (), outcomes: Sequence[str] = ()) -> Entries:
        """Return what was handled lately, of all instances, the newest first.

        A call looks at ten times ``limit`` entries at most (a store of several parts: in each): it may return fewer than
        ``limit``, or none, although others follow. Entries of one time are in an order of the store's own. Between two calls
        entries may be added and purged: one that is there all the time comes once. A damaged entry hides no others: it comes
        with empty texts, whatever is asked for.

        Args:
            limit: How many at most: at least 1.
            after: ``Entries.after`` of the call before; empty, to begin.
            names: The stored names of sagas; empty: of all.
            outcomes: The outcomes; empty: all.

        Raises:
            ValueError: ``after`` is nothing that a call returns.
        """

    @abstractmethod
    def purge(self, older_than_ms: int, limit: int) -> int:
        """Remove at most ``limit`` entries that are older, by the store's clock, than this age; return how many."""

    def oldest_at(self) -> int:
        """Return the time of the oldest entry, about; 0 if there is none, or if the journal does not know, as this one."""
        return 0


class Deliveries(ABC):
    """Counts of redeliveries, which reveal a message that ends its worker each time."""

    @abstractmethod
    def count(self, step: str, message_id: str) -> int:
        """Count one delivery of a message to a step; return how many there are with this one.

        A call whose reply was lost and that is repeated may count twice.
        """

    @abstractmethod
    def purge(self, older_than_ms: int, limit: int) -> int:
        """Forget at most ``limit`` messages whose last delivery is older, by the store's clock; return how many."""


class DeadLetters(ABC):
    """Messages that failed permanently, and rejected items, which ``AggregateStore`` writes."""

    @abstractmethod
    def add(self, dead_letter: DeadLetter) -> None:
        """Keep a dead letter. One with the id of a kept dead letter changes nothing."""

    @abstractmethod
    def list(self, limit: int, before: str | None = None) -> list[DeadLetter]:
        """Return at most ``limit`` dead letters, newest first; with ``before``, those that follow this id in that order."""

    @abstractmethod
    def get(self, id: str) -> DeadLetter | None:
        """Return a dead letter, or ``None``."""

    @abstractmethod
    def remove(self, id: str) -> bool:
        """Remove a dead letter; return whether it was there."""

    @abstractmethod
    def count(self) -> int:
        """Count the dead letters, without reading them."""


class Operation(Protocol):
    """One call of a port, as a value: see ``celery_sagas.stores.operations``."""

    def perform(self, backend: "Backend") -> Any:
        """Perform it; return what the port returns, or raise what it raises."""


class Backend(ABC):
    """One backend, open in one process: its ports, and the methods that prepare and close it.

    Aggregators are optional. A backend without them sets neither ``aggregates`` nor ``buffers``: reading one of the two raises
    ``ConfigurationError``. Apps with aggregators, and sagas that call ``gather``, are then refused, unless
    ``saga_aggregator_backend`` names a backend that has both.

    ``instances`` is optional, too: without it nothing lists instances, and sagas with ``search_by`` are refused. So is ``audit``:
    without it operators change nothing, and no commit has an entry for it.
    """

    sagas: SagaStore
    outbox: Outbox
    journal: Journal
    deliveries: Deliveries
    dead: DeadLetters
    aggregates: AggregateStore = NOT_KEPT
    buffers: Buffers = NOT_KEPT
    instances: Instances = NOT_LISTED
    audit: Audit = NOT_AUDITED
    #: ``None`` where it takes no part in the transactions of others.
    shared: SharedTransactions | None = None
    #: How long the journal is kept if the setting does not say. Seconds.
    journal_retention_s: float
    #: The URL as it may be shown: without a password.
    url: str

    @property
    def has_aggregators(self) -> bool:
        """Return whether this backend has set both ports of aggregators."""
        return is_set(self, "aggregates") and is_set(self, "buffers")

    @property
    def has_instances(self) -> bool:
        """Return whether this backend has set the port that lists instances."""
        return is_set(self, "instances")

    @property
    def has_audit(self) -> bool:
        """Return whether this backend has set the port of the audit."""
        return is_set(self, "audit")

    @abstractmethod
    def prepare(self, *, create_schema: bool, processes: int) -> Sequence[str]:
        """Make the backend ready, before anything is consumed; any number of workers may call it at once.

        Creates what is missing if ``create_schema``, and refuses a stored layout on which this code cannot run, and what cannot
        keep the promise: an unsafe engine, or one that ``processes`` worker processes cannot share.

        Returns:
            Warnings for the log, one sentence each.

        Raises:
            UnsafeBackend: It cannot keep the promise.
            ConfigurationError: It cannot be used; the text names what to set.
            StoreUnavailable: It cannot be reached.
        """

    def health(self) -> Sequence[Remark]:
        """Look at the server and at the layout of what is stored, and return what operators should know; write nothing.

        What ``prepare`` would refuse is a remark of the level ``FAIL``. If nothing is stored yet, or if this code cannot run on
        what is, there is a remark of the subject ``LAYOUT``, and no port is to be called: it might begin to store something. A
        backend that knows nothing of itself returns nothing, as this method does.

        Raises:
            ConfigurationError: The server cannot be used; the text names what to set.
            StoreUnavailable: It cannot be reached.
        """
        return ()

    def many(self, operations: Sequence[Operation]) -> list[Any]:
        """Perform the operations of several messages, in as few round trips as the backend allows.

        Each succeeds or fails by itself: its answer is what it would return alone, or, in its place, the ``StoreError`` that it
        would raise. A commit stays a commit of its own: it writes all of its parts or none, whatever becomes of the others, and a
        repeat of the call (its reply was lost) has the same answers. Operations about one instance, key or message may be
        performed in any order.

        Returns:
            The answers, in the order of the operations.

        Raises:
            Exception: Any other error, such as that of a time limit. Some of the operations may have been performed.
        """
        return [_answer(operation, self) for operation in operations]

    def note_app(self, name: str) -> str:
        """Note the name of an app that starts under this prefix; return the name that was noted before it.

        The name is empty if none was noted. Of two that are noted at once, one is returned to the other. A call whose reply was
        lost and that is repeated may return its own name. A backend that cannot note anything returns an empty text each time, as
        this method does.
        """
        return ""

    def migrate(self) -> Sequence[str]:
        """Bring what is stored from the layout of an earlier release to that of this one, while workers of both run.

        Any number of calls may run at once; one that was killed is repeated. Where nothing is to be done it does nothing.

        Returns:
            What was done, one sentence each.

        Raises:
            ConfigurationError: Nothing is stored yet, or in a layout from which no way leads to this one.
            StoreUnavailable: The store cannot be reached.
        """
        return []

    def migration(self) -> str:
        """Return the statements that ``migrate`` runs on the layout before this one, for a person to apply; empty where it runs
        none.

        Nothing is connected.
        """
        return ""

    @abstractmethod
    def schema(self) -> str:
        """Return what ``prepare`` would create, as statements for a person to apply; empty where it creates nothing.

        Nothing is connected.
        """

    @abstractmethod
    def close(self) -> None:
        """Close every connection. A closed backend is not used again."""


def shared_of(backend: Backend, setting: str = "saga_backend", example: str = "postgresql://…") -> SharedTransactions:
    """Return a backend's shared transactions.

    Raises:
        ConfigurationError: It has none; the text names the setting to change.
    """
    if backend.shared is None:
        problem = f"{backend.url} takes no part in the transactions of a database"
        raise ConfigurationError(problem, f"Set {setting} to the URL of the database in which the rows are: {example}")
    return backend.shared


def _answer(operation: Operation, backend: Backend) -> Any:
    try:
        return operation.perform(backend)
    except StoreError as exc:
        return exc
