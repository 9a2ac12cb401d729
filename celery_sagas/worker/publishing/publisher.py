"""Publishing over any transport of kombu, and in eager mode."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import uuid4

from amqp.exceptions import AccessRefused, ChannelError, MessageNacked, RecoverableChannelError
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Producer
from kombu.exceptions import OperationalError

from celery_sagas.connections import IdleConnections, OnFailure
from celery_sagas.engine.outbox.publishing import OutgoingMessage, Publisher
from celery_sagas.errors import PublishError, Unconfirmed, Unroutable
from celery_sagas.worker.publishing.signatures import publish
from celery_sagas.worker.serialization import deserialized, restored

logger = logging.getLogger("celery_sagas")

#: Seconds that the broker may take to answer: a connection, a command, a message.
DEADLINE_S = 5
#: One attempt more than none: the first may use a connection that died while it was idle.
RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
#: The broker is away, or ends the connection over the message.
_CONNECTION_ERRORS = (OSError, OperationalError)
#: Temporary refusals of one message by an AMQP broker: a queue is full, or held by another connection.
PASSING_REFUSALS = (RecoverableChannelError, MessageNacked)
#: AMQP's error classes for connections, and for unspecific errors.
_OF_CONNECTIONS = (0, 10)


def _is_about_login(error: BaseException) -> bool:
    """Return whether RabbitMQ refuses this user altogether, in words with which it also refuses single messages."""
    return isinstance(error, AccessRefused) and error.method_sig is not None and error.method_sig[0] in _OF_CONNECTIONS


def take_return(producer: Any) -> Unroutable | None:
    """Return the error of a returned message, and have its producer declare queues again: a declared one may be gone."""
    returns = producer.on_return
    if returns is None or returns.error is None:
        return None
    error: Unroutable
    error, returns.error = returns.error, None
    producer.connection.declared_entities.clear()
    return error


class ConfirmedPublisher(Publisher):
    """Publishes to the broker, and waits for its confirmation."""

    inline = False
    #: The options that set the transport's deadlines; the app's own options take precedence.
    transport_options: ClassVar[Mapping[str, Any]] = {}
    #: Seconds for which a worker keeps a message waiting that is due later; what is due after that is published again.
    longest_wait_s: ClassVar[float] = 300.0  # well below every broker's consumer time-out
    #: Errors with which an available broker refuses one message, or the client one that cannot be written.
    refusals: ClassVar[tuple[type[BaseException], ...]] = ()

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._options: dict[str, Any] = {}
        options = {**self.transport_options, **app.conf.broker_transport_options}
        #: Never used itself.
        self._connection: Any = app.connection_for_write(transport_options=options, connect_timeout=DEADLINE_S)
        self._connection.transport_cls = self._transport_of(self._connection)
        self._producers: IdleConnections[Any] = IdleConnections(_disconnect, app.conf.broker_pool_limit or 0)
        self._connection_errors: tuple[type[BaseException], ...] = (*_CONNECTION_ERRORS, *self._connection.connection_errors)

    def _transport_of(self, connection: Any) -> Any:
        """Return the transport for the connections, a class or a name."""
        return connection.transport_cls

    def publish(self, message: OutgoingMessage) -> None:
        """Publish a row of the outbox. A row counts its failures, so that even a temporary refusal counts."""
        try:
            sent = deserialized(self._app, message.payload)
        except Exception as exc:
            raise PublishError(f"its row cannot be read: {exc!r}", connection=isinstance(exc, SoftTimeLimitExceeded)) from exc
        try:
            self.publish_signature(sent)
        except Unconfirmed as exc:
            if refusal := self.refusal_of(exc):
                raise PublishError(exc.reason, connection=False) from refusal
            raise

    def publish_signature(self, sent: Signature[Any]) -> None:
        """Publish a signature that has an id.

        Raises:
            PublishError: It was not confirmed.
            Unconfirmed: It is also unknown whether the broker or the message is the cause, or the cause may pass.
            Unroutable: No queue accepts it.
        """
        with self._connected() as producer:
            unroutable = self._publish(producer, sent) and self._publish(producer, sent)
        if unroutable:
            raise unroutable

    def _publish(self, producer: Any, sent: Signature[Any]) -> Unroutable | None:
        """Publish a signature; return the error if no queue accepts it. Its queue is then declared again the next time."""
        publish(self._app, sent, producer, retry=True, retry_policy=RETRY_POLICY, **self._options_of(sent))
        return take_return(producer)

    def _options_of(self, sent: Signature[Any]) -> dict[str, Any]:
        """Return the options with which a signature is published, in addition to its own."""
        return self._options

    def probe(self) -> None:
        """Publish a message without a recipient; a broker that refuses this user exactly that is available.

        The connection is new, and nothing is retried: abandoned connections that RabbitMQ does not read stay open there.
        """
        try:
            connection = self.connected()
            with OnFailure(connection.collect):
                self._have_taken(connection, f"celery-sagas-probe-{uuid4().hex}")
                connection.release()
        except Exception as exc:
            if not self._refuses_probe(exc):
                raise PublishError(f"{type(exc).__name__}: {exc}", connection=True) from exc

    def _have_taken(self, connection: Any, name: str) -> None:
        """Publish a message under a name; where kombu has no such message, a connection must suffice."""

    def _refuses_probe(self, error: Exception) -> bool:
        return self.refusal_of(error) is not None

    def _error_of(self, exc: BaseException, is_connected: bool) -> PublishError:
        if not is_connected or isinstance(exc, SoftTimeLimitExceeded) or _is_about_login(exc):
            return PublishError(repr(exc), connection=True)
        may_pass = isinstance(exc, PASSING_REFUSALS if isinstance(exc, self.refusals) else self._connection_errors)
        return Unconfirmed(repr(exc), connection=True) if may_pass else PublishError(repr(exc), connection=False)

    def is_about_broker(self, error: BaseException) -> bool:
        """Return whether an error ends a channel or its connection, or may do so."""
        refusal = self.refusal_of(error)
        return isinstance(error, self._connection_errors) if refusal is None else isinstance(refusal, ChannelError)

    def refusal_of(self, error: BaseException) -> BaseException | None:
        """Return the broker's refusal of a message in an error or its causes: kombu wraps those that it would retry."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, self.refusals):
            cause = cause.__cause__
        return None if cause is None or _is_about_login(cause) else cause

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Check out a connected producer: an earlier error, such as one of the login, says nothing about a message.

        Raises:
            PublishError: For an error in the block, as in ``publish_signature``.
        """
        is_connected = False
        try:
            with self._producer() as producer:
                is_connected = True
                yield producer
        except Exception as exc:
            cause = self.refusal_of(exc) or exc
            raise self._error_of(cause, is_connected) from cause

    @contextmanager
    def _connected_for_many(self) -> Iterator[Any]:
        """Check out a producer for many messages: those that an error leaves unconfirmed are published one by one.

        Raises:
            PublishError: There is no connection, or the time to wait for it is over.
        """
        try:
            with self._connected() as producer:
                yield producer
        except PublishError as exc:
            if exc.connection and not isinstance(exc, Unconfirmed):
                raise
            logger.debug("a batch was not confirmed as a whole: %r", exc)

    def connected(self) -> Any:
        """Return a new connection to the broker, owned by the caller."""
        connection = self._connection.clone()
        with OnFailure(connection.collect):
            connection.ensure_connection(**RETRY_POLICY)
        return connection

    @contextmanager
    def confirming(self) -> Iterator[dict[str, Any]]:
        """Yield the options with which Celery's own functions publish a message confirmed, within a deadline.

        ``take_return`` reports whether a queue has accepted it.
        """
        with self._producer() as producer:
            yield {"producer": producer, "retry": True, "retry_policy": RETRY_POLICY, **self._options}

    def _new_producer(self) -> Any:
        return Producer(self._connection.clone())

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Check out a connected producer; after an interruption or an error in its use, its connection is closed."""
        producer = self._producers.check_out() or self._new_producer()
        with OnFailure(producer.connection.collect):
            producer.connection.ensure_connection(**RETRY_POLICY)
            yield producer
        self._producers.check_in(producer)

    def close(self) -> None:
        """Close the connections."""
        self._producers.close()


def _disconnect(producer: Any) -> None:
    producer.connection.collect()


class EagerPublisher(Publisher):
    """Runs the tasks at once, as ``task_always_eager`` requires."""

    inline = True

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, message: OutgoingMessage) -> None:
        """Run a row of the outbox."""
        self.publish_signature(restored(self._app, message.payload))

    def publish_signature(self, sent: Signature[Any]) -> None:
        """Run a signature."""
        sent.apply_async()

    def probe(self) -> None:
        """Do nothing: there is no broker."""

    def close(self) -> None:
        """Do nothing: there is no connection."""
