"""The port of the outbox. The docstrings are the specification; ``celery_sagas.testing`` tests each sentence."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from celery_sagas.stores.records import Entry, OutboxGlance, OutboxPage, OutboxRow, OutboxTally


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

        With ``keep_ms`` they stay: they are due again after this time, or, if it has been longer since they were tried first,
        after as long as that, but not after more than a day. So a message that the broker has lost is published again, and one
        that waits in a queue seldom has copies. The commit that handles it cancels its row.

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
    def overdue(self, before: int, limit: int, after: str = "") -> OutboxPage:
        """Return rows that were never tried though they were due before a time: those that may be claimed first come first.

        It looks at the rows that may be claimed now, or within ``LOOK_MS``, and costs what it looks at; at ``LOOKED_AT`` rows in
        all it may stop: it may return fewer than ``limit``, or none, although others follow. A row that is there all the time,
        and does not change, comes once.

        Args:
            before: Milliseconds since the epoch.
            limit: How many at most: 1 to ``MOST``.
            after: ``OutboxPage.after`` of the call before; empty, to begin.
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
