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
from celery_sagas.stores.journal import Journal
from celery_sagas.stores.optional import NOT_AUDITED, NOT_KEPT, NOT_LISTED, NOT_SWITCHED, is_set
from celery_sagas.stores.outbox import Outbox
from celery_sagas.stores.records import Change, DeadLetter, Effects, Found, Handling, Lookup, NewRecord, Record, Renamed
from celery_sagas.stores.shared import SharedTransactions
from celery_sagas.stores.switches import Switches


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

    ``instances`` is optional, too: without it nothing lists instances, and sagas with ``search_by`` or ``max_idle`` are refused.
    So is ``audit``: without it operators change nothing, and no commit has an entry for it. So are ``switches``,
    which need the audit: without them no saga and no step is held.
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
    switches: Switches = NOT_SWITCHED
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

    @property
    def has_switches(self) -> bool:
        """Return whether this backend has set the port of the switches."""
        return is_set(self, "switches")

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
