"""Publishing over any transport of kombu's, and in eager mode."""

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
from celery_sagas.worker.serialization import deserialized, restored

logger = logging.getLogger("celery_sagas")

#: Seconds that the broker may take to answer: to a connection, to a command, to a message.
DEADLINE_S = 5
#: One attempt more than none: the first may meet a connection that died while it was idle.
RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
#: The broker is away, or ends the connection over the message.
_CONNECTION_ERRORS = (OSError, OperationalError)
#: Refusals of one message by an AMQP broker that may pass: a queue is full, or held by another connection.
PASSING_REFUSALS = (RecoverableChannelError, MessageNacked)
#: AMQP's classes of what is about a connection, or about nothing in particular.
_OF_CONNECTIONS = (0, 10)


def _is_about_login(error: BaseException) -> bool:
    """Whether RabbitMQ refuses this user altogether, in words that are also those by which it refuses one message."""
    return isinstance(error, AccessRefused) and error.method_sig is not None and error.method_sig[0] in _OF_CONNECTIONS


def take_return(producer: Any) -> Unroutable | None:
    """Return the error of a message that a producer got back, and have it declare queues anew: one that is known may be gone."""
    returns = producer.on_return
    if returns is None or returns.error is None:
        return None
    error: Unroutable
    error, returns.error = returns.error, None
    producer.connection.declared_entities.clear()
    return error


class ConfirmedPublisher(Publisher):
    """Publishes through the broker, and waits for it to confirm."""

    inline = False
    #: How the transport is told of the deadlines; the app's own options come first.
    transport_options: ClassVar[Mapping[str, Any]] = {}
    #: Errors by which a broker that is there refuses one message, or the client one that cannot be written.
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
        """Publish a row of the outbox. A row counts its failures, so that a refusal counts even if it may pass."""
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
            Unconfirmed: Nor is it known whether that is about the broker or about the message, or it may pass.
            Unroutable: No queue takes it.
        """
        with self._connected() as producer:
            unroutable = self._publish(producer, sent) and self._publish(producer, sent)
        if unroutable:
            raise unroutable

    def _publish(self, producer: Any, sent: Signature[Any]) -> Unroutable | None:
        """Publish a signature; return the error if no queue takes it. The next time its queue is declared anew."""
        sent.apply_async(producer=producer, retry=True, retry_policy=RETRY_POLICY, **self._options_of(sent))
        return take_return(producer)

    def _options_of(self, sent: Signature[Any]) -> dict[str, Any]:
        """Return the options with which a signature is published, beside its own."""
        return self._options

    def probe(self) -> None:
        """Have the broker take a message that is for nobody; one that refuses this user just that is there.

        The connection is a new one, and nothing is tried twice: those that are given up while RabbitMQ does not read them stay
        open there.
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
        """Have the broker take a message under a name; where kombu knows no such message, a connection must do."""

    def _refuses_probe(self, error: Exception) -> bool:
        return self.refusal_of(error) is not None

    def _error_of(self, exc: BaseException, is_connected: bool) -> PublishError:
        if not is_connected or isinstance(exc, SoftTimeLimitExceeded) or _is_about_login(exc):
            return PublishError(repr(exc), connection=True)
        may_pass = isinstance(exc, PASSING_REFUSALS if isinstance(exc, self.refusals) else self._connection_errors)
        return Unconfirmed(repr(exc), connection=True) if may_pass else PublishError(repr(exc), connection=False)

    def is_about_broker(self, error: BaseException) -> bool:
        """Tell whether an error is the end of a channel or of its connection, or may be."""
        refusal = self.refusal_of(error)
        return isinstance(error, self._connection_errors) if refusal is None else isinstance(refusal, ChannelError)

    def refusal_of(self, error: BaseException) -> BaseException | None:
        """Return a broker's refusal of a message that an error is, or is caused by: kombu wraps those that it would try again."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, self.refusals):
            cause = cause.__cause__
        return None if cause is None or _is_about_login(cause) else cause

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Check out a producer that is connected: what fails before, a login for instance, says nothing about a message.

        Raises:
            PublishError: What was raised meanwhile, as ``publish_signature`` says it.
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
            PublishError: There is no connection, or nobody should wait for it any longer.
        """
        try:
            with self._connected() as producer:
                yield producer
        except PublishError as exc:
            if exc.connection and not isinstance(exc, Unconfirmed):
                raise
            logger.debug("a batch was not confirmed as a whole: %r", exc)

    def connected(self) -> Any:
        """Return a new connection to the broker, which is the caller's own."""
        connection = self._connection.clone()
        with OnFailure(connection.collect):
            connection.ensure_connection(**RETRY_POLICY)
        return connection

    @contextmanager
    def confirming(self) -> Iterator[dict[str, Any]]:
        """Yield the options with which Celery's own functions publish a message confirmed, within a deadline.

        Whether a queue has taken it is known by ``take_return``.
        """
        with self._producer() as producer:
            yield {"producer": producer, "retry": True, "retry_policy": RETRY_POLICY, **self._options}

    def _new_producer(self) -> Any:
        return Producer(self._connection.clone())

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Check out a producer, and have it connected; one whose use was interrupted, or has failed, loses its connection."""
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
    """Runs the tasks here and now, as ``task_always_eager`` wants it."""

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
        """Ask nobody."""

    def close(self) -> None:
        """Close nothing."""
