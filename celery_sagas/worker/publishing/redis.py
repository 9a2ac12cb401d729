"""Publishing to Redis: many messages in one round trip, with a reply for each."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property
from typing import Any, ClassVar

from celery.exceptions import SoftTimeLimitExceeded
from kombu import Producer

from celery_sagas.engine.outbox.publishing import OutgoingMessage, Receipt
from celery_sagas.worker.publishing.publisher import DEADLINE_S, RETRY_POLICY, ConfirmedPublisher
from celery_sagas.worker.publishing.signatures import publish
from celery_sagas.worker.serialization import deserialized

logger = logging.getLogger("celery_sagas")

#: The lifetime of a key that is written to check that Redis accepts writes. Milliseconds.
_PROBED_MS = 1_000
#: The class of the error with which Redis refuses a user access to a key.
_NO_PERMISSION = "NoPermissionError"
#: How many characters are sent to Redis at once: it replies when it has received all of them.
_BATCH_CHARACTERS = 1_000_000


class RedisPublisher(ConfirmedPublisher):
    """Publishes over one connection for all commands of a thread, in batches where there is more than one message."""

    transport_options: ClassVar = {"socket_timeout": DEADLINE_S, "socket_connect_timeout": DEADLINE_S}

    def _transport_of(self, connection: Any) -> Any:
        return _batching(connection.get_transport_cls())

    def publish_many(self, messages: Sequence[OutgoingMessage]) -> Receipt:
        """Publish messages in few round trips; ``publish`` then handles those that Redis refuses."""
        confirmed, written = set[str](), dict[str, slice]()
        with self._connected_for_many() as producer:
            for batch in _batches(messages):
                pipeline = producer.channel.client.pipeline(transaction=False)
                written = self._write(producer, pipeline, batch)
                replies = pipeline.execute(raise_on_error=False)
                confirmed |= {id for id, own in written.items() if not any(isinstance(each, Exception) for each in replies[own])}
                written = {}  # Redis has replied for all of them
        return Receipt(confirmed, frozenset(written))

    def _write(self, producer: Any, pipeline: Any, messages: Sequence[OutgoingMessage]) -> dict[str, slice]:
        """Write messages into a pipeline; return the commands of each row that could be written."""
        written = {}
        for message in messages:
            first, producer.channel.pipeline = len(pipeline), pipeline
            try:
                sent = deserialized(self._app, message.payload)
                publish(self._app, sent, producer, retry=False, retry_policy=RETRY_POLICY)
                written[message.id] = slice(first, len(pipeline))
            except Exception as exc:
                if isinstance(exc, SoftTimeLimitExceeded) or self.is_about_broker(exc):
                    raise
                logger.debug("%s %s cannot be published with others: %r", message.task, message.message_id, exc)
            finally:
                producer.channel.pipeline = None
        return written

    def is_about_broker(self, error: BaseException) -> bool:
        """Return whether an error ends a connection; Redis may also have refused a command, such as to declare a queue."""
        return super().is_about_broker(error) and not isinstance(error.__cause__, self._connection.channel_errors)

    def _have_taken(self, connection: Any, name: str) -> None:
        connection.default_channel.client.set(name, "", px=_PROBED_MS)

    def _refuses_probe(self, error: Exception) -> bool:
        return type(error).__name__ == _NO_PERMISSION

    def _new_producer(self) -> Any:
        return _Producer(self._connection.clone())


def _batches(messages: Sequence[OutgoingMessage]) -> Iterator[list[OutgoingMessage]]:
    """Yield messages in batches of a bounded number of characters, or of one message."""
    batch, characters = list[OutgoingMessage](), 0
    for message in messages:
        characters += len(message.payload)
        if batch and characters > _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], len(message.payload)
        batch.append(message)
    yield batch


class _Producer(Producer):
    """A producer that checks each queue once per channel: kombu's check takes a tenth of the publishing time."""

    def revive(self, channel: Any) -> None:
        """Use another channel."""
        super().revive(channel)
        self._declared = set[tuple[str, str]]()

    def maybe_declare(self, entity: Any, *arguments: Any, **options: Any) -> Any:
        """Declare a queue or an exchange, unless it has been declared."""
        name = (type(entity).__name__, entity.name)
        if name in self._declared:
            return False
        is_new = super().maybe_declare(entity, *arguments, **options)
        if entity.can_cache_declaration:  # else it may go away at any moment, as kombu marks it
            self._declared.add(name)
        return is_new


class _Channel:
    """Mixed into kombu's channel: it keeps one client and its connection, or writes into a pipeline.

    Kombu makes a client for each command, which takes a connection from its pool: a third of the publishing time.
    """

    pipeline: Any = None  #: into which messages are written, if any
    _writing_to: Any = None

    @cached_property
    def kept(self: Any) -> Any:
        """The client. Its connection may have died while it was idle: kombu then publishes again over another."""
        return self.Client(connection_pool=self.async_pool, single_connection_client=True)

    def conn_or_acquire(self: Any, client: Any = None) -> AbstractContextManager[Any]:
        """Return a client for some commands."""
        return nullcontext(client or self._writing_to or self.kept)

    def _put(self, *arguments: Any, **options: Any) -> None:
        kombus: Any = super()
        self._write(kombus._put, arguments, options)

    def _put_fanout(self, *arguments: Any, **options: Any) -> None:
        kombus: Any = super()
        self._write(kombus._put_fanout, arguments, options)

    def _write(self, put: Callable[..., None], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._writing_to = self.pipeline
        try:
            put(*arguments, **options)
        finally:
            self._writing_to = None


@cache
def _batching(transport: Any) -> type:
    """Return a transport of kombu with our channel."""
    channel = type("Channel", (_Channel, transport.Channel), {"__doc__": _Channel.__doc__})
    return type("Transport", (transport,), {"__doc__": transport.__doc__, "Channel": channel})
