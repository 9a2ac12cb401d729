"""Publishing to RabbitMQ, which confirms asynchronously: one by one, many at once, or without waiting for confirmations."""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, ClassVar

from amqp.exceptions import ChannelError, FrameSyntaxError, MessageNacked
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Producer

from celery_sagas.connections import OnFailure
from celery_sagas.engine.outbox.publishing import OutgoingMessage, Receipt
from celery_sagas.errors import PublishError, Unroutable
from celery_sagas.forks import Process
from celery_sagas.worker.publishing.confirms import (
    MESSAGE_DEADLINE_S,
    AsynchronousChannel,
    ConfirmChannel,
    Confirms,
    is_mandatory,
)
from celery_sagas.worker.publishing.publisher import DEADLINE_S, ConfirmedPublisher

logger = logging.getLogger("celery_sagas")


class _Returns:
    """Notes the last unroutable message: RabbitMQ returns it before it confirms it.

    It holds no reference to its producer, so that the producer is released once it is no longer used.
    """

    def __init__(self) -> None:
        self.error: Unroutable | None = None

    def __call__(self, error: Exception, exchange: str, routing_key: str, message: object) -> None:
        """Note a message, as returned by kombu."""
        self.error = Unroutable(exchange, routing_key)


class AmqpPublisher(ConfirmedPublisher):
    """Publishes in AMQP's confirm mode. Posted messages go over one channel, on a connection that is made when needed.

    Any error of that channel ends its connection, and messages without a confirmation stay in the outbox. Threads take turns.
    In a child of its process it posts nothing.
    """

    transport_options: ClassVar = {"confirm_publish": True, "read_timeout": DEADLINE_S, "write_timeout": DEADLINE_S}
    refusals: ClassVar = (ChannelError, FrameSyntaxError, MessageNacked)

    def __init__(self, app: Celery) -> None:
        super().__init__(app)
        self._options = {"confirm_timeout": DEADLINE_S, "mandatory": True}
        self._lock = threading.Lock()
        self._channel: AsynchronousChannel | None = None
        self._confirmed: list[str] = []  #: over connections that have ended
        self._failed_at = 0.0  #: when no connection could be made, or the broker did not confirm in time
        self._is_closed = False
        self._poster: int | None = None  #: the thread, or greenlet, that holds the lock
        self._process = Process()  #: in a child of it the lock may never be free

    def _transport_of(self, connection: Any) -> Any:
        # else each clone looks for librabbitmq, which does not confirm
        return "pyamqp" if connection.transport_cls == "amqp" else connection.transport_cls

    def _options_of(self, sent: Signature[Any]) -> dict[str, Any]:
        return self._options if is_mandatory(sent) else self._options | {"mandatory": False}

    def _have_taken(self, connection: Any, name: str) -> None:
        """Have a message confirmed without a queue, but with a body: RabbitMQ confirms others even while it accepts none."""
        Producer(connection).publish("?", routing_key=name, confirm_timeout=DEADLINE_S)

    def _new_producer(self) -> Any:
        on_return: Any = _Returns()
        return Producer(self._connection.clone(), on_return=on_return)

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Receipt:
        """Publish messages in order, over a channel of their own, and wait for the broker's confirmations.

        If the channel ends, publishing ends: messages that were written before it, and are not confirmed, may or may not have
        arrived.
        """
        confirms = Confirms()
        with self._connected_for_many() as producer, producer.connection.channel() as channel:
            writing = ConfirmChannel(self._app, self, channel)
            confirms = writing.confirms
            self._write_all(writing, messages)
        return Receipt(confirms.confirmed, confirms.unconfirmed)

    def _write_all(self, writing: ConfirmChannel, messages: Sequence[OutgoingMessage]) -> None:
        try:
            for message in messages:
                writing.write(message)
        except Exception as exc:
            is_opened_anew = self.refusal_of(exc) is not None  # and confirms none of the messages before
            if not is_opened_anew:
                writing.wait(DEADLINE_S)
            raise
        finally:
            writing.send_held()
        writing.wait(DEADLINE_S)

    def post(self, messages: Iterable[OutgoingMessage]) -> int:
        """Write messages after those that were written before."""
        asked_at, count = time.monotonic(), 0
        if self._process.is_child or self._is_posting_here():
            return count
        with self._lock, self._posting():
            for message in messages:
                if self._is_closed or not self._post(message, asked_at):
                    break
                count += 1
        return count

    def _post(self, message: OutgoingMessage, asked_at: float) -> bool:
        began = time.monotonic()
        channel = self._channel = self._channel or self._open(asked_at)
        try:
            with self._ending_on_error(message.id):
                return channel.post(message)
        except SoftTimeLimitExceeded as exc:
            raise PublishError(repr(exc), connection=True) from exc
        except Exception as exc:
            now = time.monotonic()
            if now - began >= MESSAGE_DEADLINE_S:
                self._failed_at = now
            if now - asked_at >= MESSAGE_DEADLINE_S:
                raise PublishError(repr(exc), connection=True) from exc
            return False

    def _is_posting_here(self) -> bool:
        """Return whether a message is handled while one is published, as a receiver of Celery's signals may do."""
        return self._poster == threading.get_ident()

    @contextmanager
    def _posting(self) -> Iterator[None]:
        self._poster = threading.get_ident()
        try:
            yield
        finally:
            self._poster = None
            if self._channel is not None:
                self._channel.send_held()

    def collect(self) -> Sequence[str]:
        """Return the ids of the rows that the broker has confirmed since the last call."""
        if self._process.is_child or self._is_posting_here():
            return ()
        with self._lock:
            if self._channel is not None:
                self._read(self._channel)
            confirmed, self._confirmed = self._confirmed, []
            return confirmed

    def awaited(self) -> Set[str]:
        """Return the ids of the rows without a response of the broker yet."""
        if self._process.is_child or self._is_posting_here():
            return frozenset()
        with self._lock:
            return self._channel.confirms.unconfirmed if self._channel is not None else frozenset()

    def close(self) -> None:
        """Close the connections; unconfirmed messages stay in the outbox."""
        super().close()
        if self._process.is_child:
            return
        with self._lock:
            self._is_closed = True
            if self._channel is not None:
                self._end("the process ends")

    def _open(self, asked_at: float) -> AsynchronousChannel:
        """Return a new connection. A caller that has waited while another thread failed to connect does not try again."""
        if self._failed_at > asked_at:
            raise PublishError("the broker cannot be reached, or does not confirm", connection=True)
        try:
            return AsynchronousChannel(self._app, self)
        except Exception as exc:
            self._failed_at = time.monotonic()
            raise PublishError(repr(exc), connection=True) from exc

    def _read(self, channel: AsynchronousChannel) -> None:
        try:
            with self._ending_on_error():
                channel.look()
        except SoftTimeLimitExceeded:
            raise
        except Exception:  # which is logged
            return
        self._take_confirmed(channel.confirms)

    def _ending_on_error(self, id: str = "") -> OnFailure:
        """End the connection if its use raises anything: its next user would read, or write, in the middle of a frame."""
        return OnFailure(lambda: self._end(repr(sys.exception()), id))

    def _end(self, reason: str, id: str = "") -> None:
        """End the connection, and log the reason and the lost messages, except one that is reported elsewhere."""
        channel, self._channel = self._channel, None
        if channel is None:
            return
        self._take_confirmed(channel.confirms)
        if lost := channel.confirms.unconfirmed - {id}:
            logger.warning("%d messages were not confirmed by the broker and stay in the outbox: %s", len(lost), reason)
        channel.close()

    def _take_confirmed(self, confirms: Confirms) -> None:
        self._confirmed += confirms.confirmed
        confirms.confirmed.clear()
        if confirms.refused:
            logger.warning("%d messages were refused by the broker and stay in the outbox", len(confirms.refused))
            confirms.refused.clear()
        if confirms.unroutable:
            reason = next(iter(confirms.unroutable.values())).reason
            logger.warning("%d messages stay in the outbox, for the first of them %s", len(confirms.unroutable), reason)
            confirms.unroutable.clear()
