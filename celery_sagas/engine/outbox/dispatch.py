"""Publishing committed messages: at once, and never at the cost of the message that sent them."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from uuid import uuid4

from celery_sagas.core.names import storable
from celery_sagas.engine.outbox.confirmations import Confirmations
from celery_sagas.engine.outbox.publishing import OutgoingMessage, Publisher, probing
from celery_sagas.errors import PublishError, StillUnsent, StoreError
from celery_sagas.observers import observers
from celery_sagas.stores.outbox import Outbox
from celery_sagas.stores.records import KEPT_KINDS, SERIES, Entry, OutboxRow

logger = logging.getLogger("celery_sagas")

#: How many characters of an error are kept with a row.
ERROR_CHARACTERS = 2_000
#: Rows of an earlier run to claim at once.
_CLAIMED_AT_ONCE = 100
#: Seconds for which plain code leaves what it has sent to relays, once the broker was away: each commit would wait for it.
_LEFT_TO_RELAYS_S = 10.0
#: How long rows that are a relay's are not claimed here again. Milliseconds.
_LEFT_FOR_MS = 1_000


@dataclass
class Dispatcher:
    """Publishes committed rows under this process's lease."""

    outbox: Outbox
    publisher: Publisher
    grace_s: float  #: the duration of the lease on the rows of a commit
    keep_s: float = 0.0  #: how long the published rows of timeouts and deadlines stay, until they are published again
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.owner = uuid4().hex  #: the lease token of this process
        self._left_to_relays_until = 0.0
        keep_ms = 0 if self.publisher.inline else int(self.keep_s * 1000)  # what runs inline cannot be lost
        self.confirmations = Confirmations(self.outbox, self.owner, self.grace_s, self.publisher, keep_ms)

    def dispatch(self, rows: Sequence[OutgoingMessage], committed_at: float) -> None:
        """Publish the rows of one commit, or several, and have them removed. Raises nothing, except from tasks that run inline.

        It stops at half the grace: two processes must not publish the rows when the lease has ended. A row whose confirmation it
        does not wait for is removed when that arrives; without one it stays in the outbox, as a row that cannot be published.
        """
        if rows:
            self._dispatch(rows, committed_at, is_waiting=False)

    def _dispatch(self, rows: Sequence[OutgoingMessage], committed_at: float, *, is_waiting: bool) -> list[str]:
        """Publish rows; return the ids of those that stay in the outbox."""
        if self.publisher.inline:
            self._run_inline(rows)
            return []
        until, left, published = committed_at + self.grace_s / 2, deque(rows), list[str]()
        try:
            if is_waiting or self._post(left, until):
                if left and self.publisher.awaited():
                    self.confirmations.settle()  # messages over another connection must not overtake those that were posted
                self._publish(left, until, published)
        finally:  # a time limit may strike between two messages
            kept = [row.id for row in rows if row.kind in KEPT_KINDS and row.id in published]
            self.confirmations.add([id for id in published if id not in kept], kept)
        unsent = [row.id for row in left if row.id not in published]
        if published or unsent:
            for observer in observers:
                observer.published(len(published), len(unsent))
        if unsent:
            logger.warning(
                "%d of %d committed messages stay in the outbox, the first is %s", len(unsent), len(rows), rows[0].task
            )
        return unsent

    def _run_inline(self, rows: Sequence[OutgoingMessage]) -> None:
        self.confirmations.add_now([row.id for row in rows])
        for row in rows:
            self.publisher.publish(row)

    def dispatch_unsent(self, entry: Entry) -> None:
        """Publish the rows that the commit of an entry has stored, and its process has not published.

        Raises:
            StillUnsent: Some rows are leased: the process that committed them may be publishing them now, or has died.
        """
        self.confirmations.settle()  # rows that this process has published are not left over
        while True:
            leased, started = self.outbox.count_leased(entry), self.clock()  # counted first: a lease may end in between
            rows = self.outbox.claim_due(self.owner, _CLAIMED_AT_ONCE, int(self.grace_s * 1000), entry)
            if not rows:
                break
            if not (rows := self._leave_series(rows)):
                continue
            logger.info("%s: publishing %d messages that message %s left", entry.step, len(rows), entry.message_id)
            self._dispatch(rows, started, is_waiting=True)  # the message is acknowledged once nothing is left
            self.confirmations.flush()
        if leased:
            raise StillUnsent(entry.step, entry.message_id, leased)

    def dispatch_committed(self, cause: Entry) -> None:
        """Publish the due rows of a transaction that plain code has committed, unless a relay has claimed them first.

        What the broker does not accept is released for relays. For a while after it was away they have all that is sent.

        Raises:
            StoreError: They cannot be claimed, or released. A relay publishes them.
            Exception: Raised by a task that runs inline.
        """
        while (started := self.clock()) >= self._left_to_relays_until:
            rows = self.outbox.claim_due(self.owner, _CLAIMED_AT_ONCE, int(self.grace_s * 1000), cause)
            unsent = self._dispatch(rows, started, is_waiting=False) if rows else []
            if unsent:
                self.outbox.release(self.owner, unsent)
            if len(rows) < _CLAIMED_AT_ONCE:
                return

    def _leave_series(self, rows: Sequence[OutboxRow]) -> list[OutboxRow]:
        """Leave the rows of series to a relay, which puts the next occurrence into them; return the rest."""
        if series := [row.id for row in rows if row.kind == SERIES]:
            self.outbox.release(self.owner, series, _LEFT_FOR_MS)
        return [row for row in rows if row.kind != SERIES]

    def _post(self, rows: deque[OutgoingMessage], until: float) -> bool:
        """Take away the rows that can be written without waiting; return whether it makes sense to publish the rest."""
        try:
            self.publisher.post(self._written(rows, until))
        except PublishError as exc:
            self._note_away(rows[0], exc)
            return False
        return True

    def _written(self, rows: deque[OutgoingMessage], until: float) -> Iterator[OutgoingMessage]:
        """Yield rows while there is time, and take each away once the next one is asked for: it was written then.

        The first timeout ends them: whether its row stays must be known when it is confirmed, and a confirmation has only its id.
        """
        while rows and rows[0].kind not in KEPT_KINDS and self.clock() <= until:
            yield rows[0]
            rows.popleft()

    def _publish(self, rows: Sequence[OutgoingMessage], until: float, published: list[str]) -> None:
        """Publish rows, and note the ids of the confirmed ones, until the broker turns out to be away."""
        if len(rows) > 1 and self.clock() <= until:
            try:
                published += self.publisher.publish_many(rows).confirmed
            except PublishError as exc:
                self._note_away(rows[0], exc)
                return
        for row in [row for row in rows if row.id not in published]:
            if self.clock() > until:
                break
            try:
                with probing(self.publisher):
                    self.publisher.publish(row)
            except PublishError as exc:
                if exc.connection:
                    self._note_away(row, exc)
                    break
                _warn(row, exc)
                self._fail(row, exc)
            else:
                published.append(row.id)

    def _note_away(self, row: OutgoingMessage, error: PublishError) -> None:
        _warn(row, error)
        self._left_to_relays_until = self.clock() + _LEFT_TO_RELAYS_S

    def _fail(self, row: OutgoingMessage, error: PublishError) -> None:
        """Record the failure of a row that cannot be published, and stop waiting for it."""
        try:
            self.outbox.fail(self.owner, row.id, storable(error.reason, ERROR_CHARACTERS), int(self.grace_s * 1000))
        except StoreError as exc:
            logger.warning("that %s %s failed could not be recorded: %s", row.task, row.message_id, exc)

    def close(self) -> None:
        """Remove the published rows, before this process ends."""
        self.confirmations.close()


def _warn(row: OutgoingMessage, error: PublishError) -> None:
    logger.warning("%s %s was not confirmed by the broker and stays in the outbox: %s", row.task, row.message_id, error.reason)
