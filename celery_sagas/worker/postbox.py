"""Publishing what a commit sends over RabbitMQ without waiting for its confirmation: the outbox keeps it until that has come."""

import logging
import sys
import threading
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from celery import Celery
from celery.exceptions import SoftTimeLimitExceeded

from celery_sagas.connections import OnFailure
from celery_sagas.engine.outbox.publishing import Message
from celery_sagas.errors import PublishError
from celery_sagas.forks import Process
from celery_sagas.worker.confirms import PATIENCE_S, ConfirmChannel
from celery_sagas.worker.publisher import DEADLINE_S, ConfirmedPublisher

logger = logging.getLogger("celery_sagas")

#: Messages that may wait for their confirmation; the next one waits for those before it.
MOST_AWAITED = 500
#: Seconds after which the first message is waited for: the connection may have died while it was idle.
RESTED_S = 5.0


class AmqpPostbox:
    """Writes over one channel in confirm mode, on a connection of its own that is made when it is needed.

    Whatever goes wrong ends the connection, and what it has not confirmed by then stays in the outbox. Threads take turns. In a
    child of its process it does nothing.
    """

    def __init__(self, app: Celery, publisher: ConfirmedPublisher) -> None:
        self._app = app
        self._publisher = publisher
        self._lock = threading.Lock()
        self._line: _Line | None = None
        self._confirmed: list[str] = []  #: over connections that have ended
        self._failed_at = 0.0  #: when there was no connection to be had, or the broker did not confirm in time
        self._is_closed = False
        self._poster: int | None = None  #: the thread, or greenlet, that has the lock
        self._process = Process()

    def post(self, message: Message) -> bool:
        """Write a message behind those that were written before."""
        asked_at = time.monotonic()
        if self._process.is_child or self._is_posting_here():
            return False
        with self._lock, self._posting():
            if self._is_closed:
                return False
            began = time.monotonic()
            line = self._line = self._line or self._open(asked_at)
            try:
                with self._ending_on_error(message.id):
                    return line.post(message)
            except SoftTimeLimitExceeded as exc:
                raise PublishError(repr(exc), connection=True) from exc
            except Exception as exc:
                now = time.monotonic()
                if now - began >= PATIENCE_S:
                    self._failed_at = now
                if now - asked_at >= PATIENCE_S:
                    raise PublishError(repr(exc), connection=True) from exc
                return False

    def _is_posting_here(self) -> bool:
        """Tell whether a message is handled while one is published: a receiver of Celery's signals may do that."""
        return self._poster == threading.get_ident()

    @contextmanager
    def _posting(self) -> Iterator[None]:
        self._poster = threading.get_ident()
        try:
            yield
        finally:
            self._poster = None

    def collect(self) -> Sequence[str]:
        """Return the ids of the rows that the broker has confirmed since the last call."""
        if self._process.is_child or self._is_posting_here():
            return ()
        with self._lock:
            if self._line is not None:
                self._read(self._line)
            confirmed, self._confirmed = self._confirmed, []
            return confirmed

    def awaited(self) -> Set[str]:
        """Return the ids of the rows of which the broker has said nothing yet."""
        if self._process.is_child or self._is_posting_here():
            return frozenset()
        with self._lock:
            return self._line.channel.confirms.unsure if self._line is not None else frozenset()

    def close(self) -> None:
        """End the connection."""
        if self._process.is_child:
            return
        with self._lock:
            self._is_closed = True
            if self._line is not None:
                self._end("the process ends")

    def _open(self, asked_at: float) -> "_Line":
        """Return a new connection. Whoever has waited while another thread tried in vain does not try again."""
        if self._failed_at > asked_at:
            raise PublishError("the broker cannot be reached, or does not confirm", connection=True)
        try:
            return _Line(self._app, self._publisher)
        except Exception as exc:
            self._failed_at = time.monotonic()
            raise PublishError(repr(exc), connection=True) from exc

    def _read(self, line: "_Line") -> None:
        try:
            with self._ending_on_error():
                line.read()
        except SoftTimeLimitExceeded:
            raise
        except Exception:  # which is told
            return
        self._take_confirmed(line)

    @contextmanager
    def _ending_on_error(self, id: str = "") -> Iterator[None]:
        """End the connection if its use raises anything: its next user would read, or write, in the middle of a frame."""
        with OnFailure(lambda: self._end(repr(sys.exception()), id)):
            yield

    def _end(self, reason: str, id: str = "") -> None:
        """End the connection, for a reason; tell what is lost with it, but for a message that somebody else tells of."""
        line, self._line = self._line, None
        if line is None:
            return
        self._take_confirmed(line)
        if lost := line.channel.confirms.unsure - {id}:
            logger.warning("%d messages were not confirmed by the broker and stay in the outbox: %s", len(lost), reason)
        line.close()

    def _take_confirmed(self, line: "_Line") -> None:
        confirms = line.channel.confirms
        self._confirmed += confirms.confirmed
        confirms.confirmed.clear()
        if confirms.refused:
            logger.warning("%d messages were refused by the broker and stay in the outbox", len(confirms.refused))
            confirms.refused.clear()
        if confirms.unroutable:
            reason = next(iter(confirms.unroutable.values())).reason
            logger.warning("%d messages stay in the outbox, for the first of them %s", len(confirms.unroutable), reason)
            confirms.unroutable.clear()


class _Line:
    """A connection, and its channel."""

    def __init__(self, app: Celery, publisher: ConfirmedPublisher) -> None:
        self._connection = publisher.connected()
        with OnFailure(self.close):
            self._connection.connection.sock.settimeout(DEADLINE_S)  # the transport's own deadlines mean nothing to gevent
            self.channel = ConfirmChannel(app, publisher, self._connection.channel())
        self._used_at = time.monotonic()
        self._first, self._first_since = 0, 0.0  #: the first number that is awaited, and since when it is known to be that

    def post(self, message: Message) -> bool:
        """Write a message; return whether it could be written."""
        now, confirms = time.monotonic(), self.channel.confirms
        has_rested, self._used_at = now - self._used_at > RESTED_S, now
        if len(confirms.expected) >= MOST_AWAITED:
            self.channel.wait(PATIENCE_S, most=MOST_AWAITED - 1)
        is_written = self.channel.write(message)
        if has_rested:
            self.channel.wait(PATIENCE_S)
        return is_written

    def read(self) -> None:
        """Take note of what the broker has said.

        Raises:
            TimeoutError: It has said nothing of the first message for too long.
        """
        now = time.monotonic()  # what comes later is found by this look, or by the next
        self.channel.read()
        first = next(iter(self.channel.confirms.expected), 0)
        if first != self._first:
            self._first, self._first_since = first, now
        elif first and now - self._first_since > DEADLINE_S:
            raise TimeoutError(f"the broker has said nothing for {DEADLINE_S} s")

    def close(self) -> None:
        """Close the connection without a word: the broker may be silent."""
        self._connection.collect()


def postbox_of(app: Celery, publisher: object) -> AmqpPostbox | None:
    """Return what publishes without waiting, or ``None`` where publishing is its own confirmation."""
    if isinstance(publisher, ConfirmedPublisher) and publisher.driver == "amqp":
        return AmqpPostbox(app, publisher)
    return None
