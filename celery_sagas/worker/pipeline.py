"""Publishing many messages before waiting for the broker to confirm them, where each confirmation is a journey of its own."""

import logging
from collections.abc import Sequence

from celery import Celery

from celery_sagas.engine.outbox.publishing import Message
from celery_sagas.engine.relay import Receipt
from celery_sagas.worker.confirms import ConfirmChannel, Confirms
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
                writing = ConfirmChannel(self._app, self._publisher, channel)
                confirms = writing.confirms
                self._publish(writing, messages)
        except Exception as exc:  # a broker that is away, or that ends the channel over a message
            logger.debug("%d of %d messages were confirmed: %r", len(confirms.confirmed), len(messages), exc)
        return Receipt(confirms.confirmed, confirms.unsure)

    def _publish(self, writing: ConfirmChannel, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                writing.write(message)
        except Exception as exc:
            is_opened_anew = self._publisher.refusal_of(exc) is not None  # and confirms nothing of what was before
            if not is_opened_anew:
                writing.wait(DEADLINE_S)
            raise
        writing.wait(DEADLINE_S)


def pipeline_of(app: Celery, publisher: object) -> AmqpPipeline | None:
    """Return what publishes many messages at once, or ``None`` where there would be no gain in it."""
    if isinstance(publisher, ConfirmedPublisher) and publisher.driver == "amqp":
        return AmqpPipeline(app, publisher)
    return None
