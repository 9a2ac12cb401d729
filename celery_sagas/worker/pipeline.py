"""Publishing many messages before waiting for the broker to confirm them, where each confirmation is a journey of its own."""

import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from celery import Celery

from celery_sagas.engine.dispatch import Message
from celery_sagas.engine.relay import Receipt
from celery_sagas.worker.freeze import thawed
from celery_sagas.worker.publisher import DEADLINE_S, ConfirmedPublisher

logger = logging.getLogger("celery_sagas")


class AmqpPipeline:
    """Publishes over a channel of its own, in AMQP's confirm mode."""

    def __init__(self, app: Celery, publisher: ConfirmedPublisher) -> None:
        self._app = app
        self._publisher = publisher

    def publish(self, messages: Sequence[Message]) -> Receipt:
        """Publish messages in order, and wait for what the broker says of them.

        One that cannot be written is passed over: whoever publishes it alone learns why. What ends the channel ends the
        publishing; of what was written before, and is not confirmed, nobody knows whether it has arrived.
        """
        confirms = Confirms()
        try:
            with self._publisher.connection() as connection, connection.channel() as channel:
                self._publish(channel, messages, confirms)
        except Exception as exc:  # a broker that is away, or that ends the channel over a message
            logger.debug("%d of %d messages were confirmed: %r", len(confirms.confirmed), len(messages), exc)
        return Receipt(confirms.confirmed, frozenset(confirms.expected.values()))

    def _publish(self, channel: Any, messages: Sequence[Message], confirms: "Confirms") -> None:
        channel.events["basic_ack"].add(confirms.ack)
        channel.events["basic_nack"].add(confirms.nack)
        channel.confirm_select()
        try:
            self._write_all(channel, messages, confirms)
        except Exception as exc:
            is_opened_anew = self._publisher.refusal_of(exc) is not None  # and confirms nothing of what was before
            if not is_opened_anew:
                self._await(channel, confirms)
            raise
        self._await(channel, confirms)

    def _write_all(self, channel: Any, messages: Sequence[Message], confirms: "Confirms") -> None:
        producer = _producer(self._app, channel)
        for message in messages:
            channel.basic_publish = partial(self._write, channel, confirms, message.id)
            try:
                thawed(self._app, message.payload).apply_async(producer=producer, retry=False)
            except Exception as exc:
                if self._publisher.is_about_broker(exc):
                    raise
                logger.debug("%s %s cannot be published with others: %r", message.task, message.message_id, exc)

    def _write(self, channel: Any, confirms: "Confirms", id: str, *arguments: Any, **options: Any) -> None:
        """Write a message, and wait for no confirmation."""
        confirms.expect(id)
        try:
            type(channel).basic_publish(channel, *arguments, **options)
        except Exception as exc:
            if not self._publisher.is_about_broker(exc):  # it is encoded as a whole before the first byte is written
                confirms.withdraw()
            raise

    def _await(self, channel: Any, confirms: "Confirms") -> None:
        give_up = time.monotonic() + DEADLINE_S
        while confirms.expected and (left_s := give_up - time.monotonic()) > 0:
            channel.connection.drain_events(timeout=left_s)


def _producer(app: Celery, channel: Any) -> Any:
    """Return a producer that looks once at each queue which a message wants declared, not with every message."""
    producer: Any = app.amqp.Producer(channel)
    declare, declared = producer.maybe_declare, dict[int, Any]()

    def maybe_declare(entity: Any, *args: Any, **options: Any) -> Any:
        if id(entity) not in declared:
            declare(entity, *args, **options)
            if getattr(entity, "can_cache_declaration", False):  # else it may go away at any moment, as kombu knows
                declared[id(entity)] = entity  # it is kept, so that no other has its id

    producer.maybe_declare = maybe_declare
    return producer


class Confirms:
    """Which messages of one channel the broker has confirmed: it counts them from 1."""

    def __init__(self) -> None:
        self.expected: dict[int, str] = {}  #: ids of rows by number, in order
        self.confirmed: set[str] = set()
        self._count = 0

    def expect(self, id: str) -> None:
        """Expect the confirmation of the next message."""
        self._count += 1
        self.expected[self._count] = id

    def withdraw(self) -> None:
        """Expect no confirmation of the last message: it was not written."""
        del self.expected[self._count]
        self._count -= 1

    def ack(self, number: int, multiple: bool) -> None:
        """Note that a message is confirmed, or all messages up to it."""
        self.confirmed.update(self._take(number, multiple))

    def nack(self, number: int, multiple: bool) -> None:
        """Note that a message is refused, or all messages up to it."""
        self._take(number, multiple)

    def _take(self, number: int, multiple: bool) -> list[str]:
        numbers = [each for each in self.expected if each <= number] if multiple else [number]
        return [self.expected.pop(each) for each in numbers if each in self.expected]


def pipeline_of(app: Celery, publisher: object) -> AmqpPipeline | None:
    """Return what publishes many messages at once, or ``None`` where there would be no gain in it."""
    if isinstance(publisher, ConfirmedPublisher) and publisher.driver == "amqp":
        return AmqpPipeline(app, publisher)
    return None
