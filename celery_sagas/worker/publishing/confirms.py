"""AMQP's confirm mode: messages are written one after the other, and the broker confirms or refuses each later."""

import logging
import select
import struct
import time
from functools import partial
from typing import Any

from amqp.exceptions import FrameSyntaxError
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded

from celery_sagas.connections import OnFailure, hold_packets
from celery_sagas.engine.outbox.publishing import OutgoingMessage
from celery_sagas.errors import Unroutable
from celery_sagas.worker.publishing.publisher import DEADLINE_S, ConfirmedPublisher
from celery_sagas.worker.publishing.signatures import publish
from celery_sagas.worker.serialization import deserialized

logger = logging.getLogger("celery_sagas")

#: Seconds that a message, or the rest of a partly received response, may take.
MESSAGE_DEADLINE_S = DEADLINE_S / 2
#: Messages that may wait for their confirmation; the next one waits for those before it.
MOST_AWAITED = 500
#: Seconds after which the first message is waited for: the connection may have died while it was idle.
RESTED_S = 5.0
#: Errors before a message is written: it is encoded as a whole before the first byte is.
_NOT_ENCODED = (FrameSyntaxError, struct.error, AttributeError, TypeError, ValueError)


def is_mandatory(sent: Signature[Any]) -> bool:
    """Return whether a message must find a queue; its options may waive that."""
    return sent.options.get("mandatory", True) is not False


class Confirms:
    """The confirmed messages of one channel, which the broker numbers from 1."""

    def __init__(self) -> None:
        self.expected: dict[int, str] = {}  #: ids of rows by number, in order; empty if a message is not a row
        self.confirmed: set[str] = set()
        self.refused: set[str] = set()
        self.unroutable: dict[str, Unroutable] = {}
        self._returned: dict[str, Unroutable] = {}  #: messages that the broker has returned, and not confirmed yet
        self._correlations: dict[int, object] = {}  #: by number; a returned message is recognized by its correlation id
        self._count = 0

    @property
    def unconfirmed(self) -> frozenset[str]:
        """The ids of the rows without a response of the broker."""
        return frozenset(filter(None, self.expected.values()))

    def expect(self, id: str, correlation: object = None) -> None:
        """Expect the confirmation of the next message."""
        self._count += 1
        self.expected[self._count] = id
        self._correlations[self._count] = correlation

    def take_back(self) -> None:
        """Stop expecting the confirmation of the last message: it was not written."""
        del self.expected[self._count], self._correlations[self._count]
        self._count -= 1

    def send_back(self, correlation: object, error: Unroutable) -> None:
        """Note that a message is unroutable: the broker returns it before it confirms it."""
        for number, each in self._correlations.items():
            if each == correlation:
                self._returned[self.expected[number]] = error

    def ack(self, number: int, multiple: bool) -> None:
        """Note that a message is confirmed, or all messages up to it."""
        for id in self._take(number, multiple):
            if error := self._returned.pop(id, None):
                self.unroutable[id] = error
            else:
                self.confirmed.add(id)

    def nack(self, number: int, multiple: bool) -> None:
        """Note that a message is refused, or all messages up to it."""
        self.refused.update(self._take(number, multiple))

    def _take(self, number: int, multiple: bool) -> list[str]:
        numbers = [each for each in self.expected if each <= number] if multiple else [number]
        for each in numbers:
            self._correlations.pop(each, None)
        taken = [self.expected.pop(each) for each in numbers if each in self.expected]
        return [id for id in taken if id]


class ConfirmChannel:
    """A channel in confirm mode, for one thread at a time. Any error ends it: its numbers are meaningless afterwards."""

    def __init__(self, app: Celery, publisher: ConfirmedPublisher, channel: Any) -> None:
        self.confirms = Confirms()
        self._app = app
        self._publisher = publisher
        self._channel = channel
        self._exchanges: set[str] = set()  #: for which a message was confirmed
        self._declared: set[tuple[str, str]] = set()  #: queues and exchanges, by class and name
        self._producer = self._make_producer()
        self._is_sound = True
        self._held: Any = None  #: the socket that holds what is written
        # else py-amqp looks for events before each message, and tries indefinitely to read the rest of half a frame
        channel.connection.client_properties = {**channel.connection.client_properties, "capabilities": {}}
        channel.events["basic_ack"].add(self.confirms.ack)
        channel.events["basic_nack"].add(self.confirms.nack)
        channel.events["basic_return"].add(self._return)
        channel.confirm_select()

    def write(self, message: OutgoingMessage) -> bool:
        """Write a message without waiting for its confirmation; return whether it could be written.

        It is sent with those that follow: when packets are full, when a confirmation is waited for, or by ``send_held``.
        """
        ids = [message.id]
        self._hold()
        self._channel.basic_publish = partial(self._write, ids)
        try:
            sent = deserialized(self._app, message.payload)
            publish(self._app, sent, self._producer, retry=False, mandatory=is_mandatory(sent))
        except Exception as exc:
            if self._is_end(exc):
                raise
            logger.debug("%s %s cannot be published with others: %r", message.task, message.message_id, exc)
            return False
        return not ids

    def _write(self, ids: list[str], message: Any, *, exchange: str = "", **options: Any) -> None:
        """Write a message: the row's first, then Celery's event about it, if any (``task_send_sent_event``)."""
        is_known = exchange in self._exchanges
        if not is_known:
            self._settle()
        sent = self._channel.connection.bytes_sent
        self.confirms.expect(ids.pop() if ids else "", message.properties.get("correlation_id"))
        self._is_sound = False
        try:
            type(self._channel).basic_publish(self._channel, message, exchange=exchange, **options)
        except _NOT_ENCODED:
            self._is_sound = self._channel.connection.bytes_sent == sent
            if self._is_sound:
                self.confirms.take_back()
            raise
        self._is_sound = True
        if not is_known:
            self._settle()
            self._exchanges.add(exchange)

    def _return(self, _: Exception, exchange: str, routing_key: str, message: Any) -> None:
        """Note an unroutable message, and declare queues again: a declared one may be gone."""
        self.confirms.send_back(message.properties.get("correlation_id"), Unroutable(exchange, routing_key))
        self._declared.clear()
        self._channel.connection.client.declared_entities.clear()

    def _settle(self) -> None:
        """Wait for all confirmations, before an operation that may end the channel, such as the use of a missing exchange."""
        self._is_sound = False
        self.wait(MESSAGE_DEADLINE_S)
        self._is_sound = True

    def _is_end(self, error: Exception) -> bool:
        """Return whether an error ends the channel; an interruption does, since it may occur in the middle of a frame."""
        return not self._is_sound or isinstance(error, SoftTimeLimitExceeded) or self._publisher.is_about_broker(error)

    def read(self) -> None:
        """Process the broker's responses so far, without waiting.

        Raises:
            TimeoutError: A response has begun to arrive, and has not ended.
        """
        while self.confirms.expected and self._has_come():
            self._channel.connection.drain_events(timeout=MESSAGE_DEADLINE_S)

    def _has_come(self) -> bool:
        """Return whether there is anything to read."""
        sock = self._channel.connection.sock
        return bool(getattr(sock, "pending", int)() or _is_readable(sock))

    def wait(self, timeout_s: float, most: int = 0) -> None:
        """Wait until the broker has confirmed or refused all messages except so many.

        Raises:
            TimeoutError: It has not. Responses that arrived while this process was blocked are read first.
        """
        self.send_held()
        deadline = time.monotonic() + timeout_s
        while len(self.confirms.expected) > most:
            left_s = deadline - time.monotonic()
            if left_s <= 0 and not self._has_come():
                raise TimeoutError(f"the broker has not confirmed it within {timeout_s:g} s")
            self._channel.connection.drain_events(timeout=left_s if left_s > 0 else MESSAGE_DEADLINE_S)

    def send_held(self) -> None:
        """Send all messages that were written."""
        held, self._held = self._held, None
        hold_packets(held, False)

    def _hold(self) -> None:
        if self._held is None:
            self._held = getattr(self._channel.connection, "sock", None)
            hold_packets(self._held, True)

    def _make_producer(self) -> Any:
        """Return a producer that checks each queue to be declared once, and not with every message."""
        producer: Any = self._app.amqp.Producer(self._channel)
        declare, declared = producer.maybe_declare, self._declared

        def maybe_declare(entity: Any, *args: Any, **options: Any) -> Any:
            name = (type(entity).__name__, entity.name)
            if name not in declared:
                self._settle()
                declare(entity, *args, **options)
                if getattr(entity, "can_cache_declaration", False):  # else it may go away at any moment, as kombu marks it
                    declared.add(name)

        producer.maybe_declare = maybe_declare
        return producer


class AsynchronousChannel(ConfirmChannel):
    """A channel on a connection of its own, whose confirmations are read from time to time."""

    def __init__(self, app: Celery, publisher: ConfirmedPublisher) -> None:
        self._connection = publisher.connected()
        with OnFailure(self.close):
            self._connection.connection.sock.settimeout(DEADLINE_S)  # the transport's own deadlines do not work under gevent
            super().__init__(app, publisher, self._connection.channel())
        self._used_at = time.monotonic()
        self._first, self._first_since = 0, 0.0  #: the first awaited number, and since when it is the first

    def post(self, message: OutgoingMessage) -> bool:
        """Write a message; return whether it could be written."""
        now = time.monotonic()
        has_rested, self._used_at = now - self._used_at > RESTED_S, now
        if len(self.confirms.expected) >= MOST_AWAITED:
            self.wait(MESSAGE_DEADLINE_S, most=MOST_AWAITED - 1)
        is_written = self.write(message)
        if has_rested:
            self.wait(MESSAGE_DEADLINE_S)
        return is_written

    def look(self) -> None:
        """Process the broker's responses so far.

        Raises:
            TimeoutError: The first message has had no response for too long.
        """
        now = time.monotonic()  # a later response is found by this check, or by the next
        self.read()
        first = next(iter(self.confirms.expected), 0)
        if first != self._first:
            self._first, self._first_since = first, now
        elif first and now - self._first_since > DEADLINE_S:
            raise TimeoutError(f"the broker has said nothing for {DEADLINE_S} s")

    def close(self) -> None:
        """Close the connection without a closing handshake: the broker may be silent."""
        self._connection.collect()


def _is_readable(sock: Any) -> bool:
    """Return whether a socket has something to read; with ``select`` where ``poll`` is missing, as under eventlet."""
    if not hasattr(select, "poll"):
        return bool(select.select([sock], [], [], 0)[0])
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
