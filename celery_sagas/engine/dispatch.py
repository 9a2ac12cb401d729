"""Publishing what was committed: at once, and never at the cost of the message that decided it."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from celery_sagas.errors import PublishError, StillUnsent, StoreError
from celery_sagas.stores.ports import Outbox
from celery_sagas.stores.records import Handling

logger = logging.getLogger("celery_sagas")

#: Leftover rows that are claimed at once.
_LEFTOVERS = 100


class Message(Protocol):
    """A row of the outbox, as far as publishing needs it."""

    @property
    def id(self) -> str: ...
    @property
    def message_id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def payload(self) -> str: ...


class Publisher(Protocol):
    """Hands messages to the broker."""

    #: Whether publishing runs the task here and now (eager mode), so that its errors are the caller's.
    inline: bool

    def publish(self, message: Message) -> None:
        """Publish one message and wait until the broker has confirmed it.

        Raises:
            PublishError: It was not confirmed; it may have arrived all the same.
        """


@dataclass
class Dispatcher:
    """Publishes committed rows under this process's lease."""

    outbox: Outbox
    publisher: Publisher
    grace_s: float  #: how long the lease lasts that a commit gives its rows
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.owner = uuid4().hex  #: the lease token of this process

    def dispatch(self, rows: Sequence[Message], committed_at: float) -> None:
        """Publish the rows of one commit, then remove them. Never raises, but for what runs inline.

        It stops at half the grace: whoever claims the rows when the lease has ended must be alone.
        """
        if self.publisher.inline:
            self._confirm([row.id for row in rows])
            for row in rows:
                self.publisher.publish(row)
            return
        published: list[str] = []
        for row in rows:
            if self.clock() - committed_at > self.grace_s / 2 or not self._publish(row, published):
                break
        if left := len(rows) - len(published):
            logger.warning("%d of %d messages of one commit stay in the outbox, the first is %s", left, len(rows), rows[0].task)
        self._confirm(published)

    def dispatch_leftovers(self, handling: Handling) -> None:
        """Publish what an earlier run of the same message committed and did not publish.

        Raises:
            StillUnsent: Some of it is leased: whoever committed it may be publishing it at this moment, or has died.
        """
        while True:
            started = self.clock()
            rows = self.outbox.claim_due(self.owner, _LEFTOVERS, int(self.grace_s * 1000), handling)
            if not rows:
                break
            logger.info("%s: publishing %d messages that message %s left", handling.steps[0], len(rows), handling.message_id)
            self.dispatch(rows, started)
        if leased := self.outbox.count_leased(handling):
            raise StillUnsent(handling.steps[0], handling.message_id, leased)

    def _publish(self, row: Message, published: list[str]) -> bool:
        """Publish a row; return whether it makes sense to go on with the next."""
        try:
            self.publisher.publish(row)
        except PublishError as exc:
            logger.warning(
                "%s %s was not confirmed by the broker and stays in the outbox: %s", row.task, row.message_id, exc.reason
            )
            if not exc.connection:
                self._fail(row, exc)
            return not exc.connection
        published.append(row.id)
        return True

    def _fail(self, row: Message, error: PublishError) -> None:
        """Note that it is the row that cannot be published: nobody waits for it any more."""
        storable = error.reason.encode(errors="backslashreplace").decode().replace("\0", "\\0")
        try:
            self.outbox.fail(self.owner, row.id, storable, int(self.grace_s * 1000))
        except StoreError as exc:
            logger.warning("that %s %s failed could not be noted: %s", row.task, row.message_id, exc)

    def _confirm(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        try:
            self.outbox.confirm(self.owner, ids)
        except StoreError as exc:
            logger.warning("%d published messages could not be removed from the outbox and may be sent again: %s", len(ids), exc)
