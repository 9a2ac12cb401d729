"""The port of the journal. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from celery_sagas.stores.records import Entries, Entry


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
