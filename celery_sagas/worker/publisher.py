"""Publishing with confirms and deadlines, over connections of our own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu import pools
from kombu.exceptions import LimitExceeded, OperationalError

from celery_sagas.engine.dispatch import Message
from celery_sagas.errors import PublishError
from celery_sagas.worker.freeze import thawed

#: Seconds that the broker may take to answer: to a connection, to a command, to a message.
DEADLINE_S = 5
#: One attempt more than none: the first may meet a connection that died while it was idle.
_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
_TRANSPORT_OPTIONS = {
    "amqp": {"confirm_publish": True, "read_timeout": DEADLINE_S, "write_timeout": DEADLINE_S},
    "redis": {"socket_timeout": DEADLINE_S, "socket_connect_timeout": DEADLINE_S},
}
#: They say nothing about the message: the broker is away, too many publish at once, or this task's time is over.
_CONNECTION_ERRORS = (OSError, OperationalError, LimitExceeded, SoftTimeLimitExceeded)


class ConfirmedPublisher:
    """Publishes through the broker, and waits for it to confirm."""

    inline = False

    def __init__(self, app: Celery) -> None:
        self._app = app
        driver = app.connection_for_write().transport.driver_type
        options = {**_TRANSPORT_OPTIONS.get(driver, {}), **app.conf.broker_transport_options}
        connection = app.connection_for_write(transport_options=options, connect_timeout=DEADLINE_S)
        self._connections: Any = connection.Pool(limit=app.conf.broker_pool_limit)
        self._producers: Any = pools.ProducerPool(self._connections, limit=app.conf.broker_pool_limit)
        self._options: dict[str, Any] = {"confirm_timeout": DEADLINE_S} if driver == "amqp" else {}

    def publish(self, message: Message) -> None:
        """Publish a row of the outbox."""
        try:
            sent = thawed(self._app, message.payload)
        except Exception as exc:
            raise PublishError(f"its row cannot be read: {exc!r}", connection=False) from exc
        self.publish_signature(sent)

    def publish_signature(self, sent: Signature[Any]) -> None:
        """Publish a signature that has an id.

        Raises:
            PublishError: It was not confirmed.
        """
        try:
            with self._producer() as producer:
                sent.apply_async(producer=producer, retry=True, retry_policy=_RETRY_POLICY, **self._options)
        except Exception as exc:
            raise PublishError(repr(exc), connection=isinstance(exc, _CONNECTION_ERRORS)) from exc

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Lend a producer. One that was interrupted loses its connection: the next command would read this one's answer."""
        producer = self._producers.acquire(block=True, timeout=DEADLINE_S)
        is_sound = False
        try:
            yield producer
            is_sound = True
        finally:
            if not is_sound:
                producer.connection.collect()
            producer.release()

    def close(self) -> None:
        """Close the connections."""
        self._producers.force_close_all()
        self._connections.force_close_all()


class EagerPublisher:
    """Runs the tasks here and now, as ``task_always_eager`` wants it."""

    inline = True

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, message: Message) -> None:
        """Run a row of the outbox."""
        self.publish_signature(thawed(self._app, message.payload))

    def publish_signature(self, sent: Signature[Any]) -> None:
        """Run a signature."""
        sent.apply_async()

    def close(self) -> None:
        """Close nothing."""
