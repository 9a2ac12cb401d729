"""Publishing with confirms and deadlines, over connections of our own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from amqp.exceptions import AccessRefused, ChannelError, FrameSyntaxError, MessageNacked, RecoverableChannelError
from celery import Celery
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu import Producer
from kombu.exceptions import OperationalError

from celery_sagas.connections import IdleConnections, OnFailure
from celery_sagas.engine.outbox.publishing import Message
from celery_sagas.errors import Doubtful, PublishError, Unroutable
from celery_sagas.worker.serialization import deserialized, restored

#: Seconds that the broker may take to answer: to a connection, to a command, to a message.
DEADLINE_S = 5
#: One attempt more than none: the first may meet a connection that died while it was idle.
_RETRY_POLICY = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
_TRANSPORT_OPTIONS = {
    "amqp": {"confirm_publish": True, "read_timeout": DEADLINE_S, "write_timeout": DEADLINE_S},
    "redis": {"socket_timeout": DEADLINE_S, "socket_connect_timeout": DEADLINE_S},
}
#: How long a key lasts that was written to see whether it can be. Milliseconds.
_PROBED_MS = 1_000
#: The class of the error by which Redis refuses a user a key.
_NO_PERMISSION = "NoPermissionError"
#: The broker is away, or ends the connection over the message.
_CONNECTION_ERRORS = (OSError, OperationalError)
#: By which an AMQP broker that is there refuses one message, or the client one that cannot be written.
_REFUSALS = (ChannelError, FrameSyntaxError, MessageNacked)
#: Those of them that may pass: a queue is full, or held by another connection.
PASSING_REFUSALS = (RecoverableChannelError, MessageNacked)
#: AMQP's classes of what is about a connection, or about nothing in particular.
_OF_CONNECTIONS = (0, 10)


def _is_about_login(error: BaseException) -> bool:
    """Whether RabbitMQ refuses this user altogether, in words that are also those by which it refuses one message."""
    return isinstance(error, AccessRefused) and error.method_sig is not None and error.method_sig[0] in _OF_CONNECTIONS


class Returns:
    """Notes the last message that no queue has taken: RabbitMQ returns it before it confirms it.

    It knows nothing of its producer, which is free for others once nothing refers to it.
    """

    def __init__(self) -> None:
        self.error: Unroutable | None = None

    def __call__(self, error: Exception, exchange: str, routing_key: str, message: object) -> None:
        """Note a message, as kombu tells of it."""
        self.error = Unroutable(exchange, routing_key)


def is_mandatory(sent: Signature[Any]) -> bool:
    """Tell whether a message must find a queue; its options can say that it need not."""
    return sent.options.get("mandatory", True) is not False


def take_return(producer: Any) -> Unroutable | None:
    """Return the error of a message that a producer got back, and have it declare queues anew: one that is known may be gone."""
    returns: Returns | None = producer.on_return
    if returns is None or returns.error is None:
        return None
    error, returns.error = returns.error, None
    producer.connection.declared_entities.clear()
    return error


class ConfirmedPublisher:
    """Publishes through the broker, and waits for it to confirm."""

    inline = False

    def __init__(self, app: Celery) -> None:
        self._app = app
        self.driver = str(app.connection_for_write().transport.driver_type)  #: what kind of broker it is
        options = {**_TRANSPORT_OPTIONS.get(self.driver, {}), **app.conf.broker_transport_options}
        self._connection: Any = app.connection_for_write(
            transport_options=options, connect_timeout=DEADLINE_S
        )  #: never used itself
        if self._connection.transport_cls == "amqp":
            self._connection.transport_cls = "pyamqp"  # else each clone looks for librabbitmq, which confirms nothing
        self._producers: IdleConnections[Any] = IdleConnections(_disconnect)
        self._is_kept = bool(app.conf.broker_pool_limit)  #: whether connections are used again
        self._connection_errors: tuple[type[BaseException], ...] = (*_CONNECTION_ERRORS, *self._connection.connection_errors)
        self._refusals: tuple[type[BaseException], ...] = _REFUSALS if self.driver == "amqp" else ()
        self._options: dict[str, Any] = {"confirm_timeout": DEADLINE_S, "mandatory": True} if self.driver == "amqp" else {}

    def publish(self, message: Message) -> None:
        """Publish a row of the outbox. A row counts its failures, so that a refusal counts even if it may pass."""
        try:
            sent = deserialized(self._app, message.payload)
        except Exception as exc:
            raise PublishError(f"its row cannot be read: {exc!r}", connection=isinstance(exc, SoftTimeLimitExceeded)) from exc
        try:
            self.publish_signature(sent)
        except Doubtful as exc:
            if refusal := self.refusal_of(exc):
                raise PublishError(exc.reason, connection=False) from refusal
            raise

    def publish_signature(self, sent: Signature[Any]) -> None:
        """Publish a signature that has an id.

        Raises:
            PublishError: It was not confirmed.
            Doubtful: Nor is it known whether that is about the broker or about the message, or it may pass.
            Unroutable: No queue takes it.
        """
        is_connected = False
        try:
            with self._producer() as producer:
                is_connected = True
                unroutable = self._publish(producer, sent) and self._publish(producer, sent)
        except Exception as exc:
            cause = self.refusal_of(exc) or exc
            raise self._error_of(cause, is_connected) from cause
        if unroutable:
            raise unroutable

    def _publish(self, producer: Any, sent: Signature[Any]) -> Unroutable | None:
        """Publish a signature; return the error if no queue takes it. The next time its queue is declared anew."""
        options = self._options if is_mandatory(sent) else self._options | {"mandatory": False}
        sent.apply_async(producer=producer, retry=True, retry_policy=_RETRY_POLICY, **options)
        return take_return(producer)

    def probe(self) -> None:
        """Have RabbitMQ confirm a message for which there is no queue, or Redis write a key; others are only connected to.

        A broker that refuses this user just that is there. The connection is a new one, and nothing is tried twice: those that
        are given up while RabbitMQ does not read them stay open there.
        """
        try:
            connection = self.connected()
            with OnFailure(connection.collect):
                self._have_taken(connection, f"celery-sagas-probe-{uuid4().hex}")
            connection.release()
        except Exception as exc:
            if self.refusal_of(exc) is None and type(exc).__name__ != _NO_PERMISSION:
                raise PublishError(f"{type(exc).__name__}: {exc}", connection=True) from exc

    def _have_taken(self, connection: Any, name: str) -> None:
        if self.driver == "amqp":  # with a body: RabbitMQ confirms a message without one even while it takes none
            Producer(connection).publish("?", routing_key=name, confirm_timeout=DEADLINE_S)
        elif self.driver == "redis":
            connection.default_channel.client.set(name, "", px=_PROBED_MS)

    def _error_of(self, exc: BaseException, is_connected: bool) -> PublishError:
        if not is_connected or isinstance(exc, SoftTimeLimitExceeded) or _is_about_login(exc):
            return PublishError(repr(exc), connection=True)
        may_pass = isinstance(exc, PASSING_REFUSALS if isinstance(exc, self._refusals) else self._connection_errors)
        return Doubtful(repr(exc), connection=True) if may_pass else PublishError(repr(exc), connection=False)

    def is_about_broker(self, error: BaseException) -> bool:
        """Tell whether an error is the end of a channel or of its connection, or may be."""
        refusal = self.refusal_of(error)
        return isinstance(error, self._connection_errors) if refusal is None else isinstance(refusal, ChannelError)

    def refusal_of(self, error: BaseException) -> BaseException | None:
        """Return a broker's refusal of a message that an error is, or is caused by: kombu wraps those that it would try again."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, self._refusals):
            cause = cause.__cause__
        return None if cause is None or _is_about_login(cause) else cause

    @contextmanager
    def connection(self) -> Iterator[Any]:
        """Lend a connection to the broker, which is closed if it is interrupted."""
        with self._producer() as producer:
            yield producer.connection

    def connected(self) -> Any:
        """Return a new connection to the broker, which is the caller's own."""
        connection = self._connection.clone()
        with OnFailure(connection.collect):
            connection.ensure_connection(**_RETRY_POLICY)
        return connection

    @contextmanager
    def confirming(self) -> Iterator[dict[str, Any]]:
        """Lend the options with which Celery's own functions publish a message confirmed, within a deadline.

        Whether a queue has taken it is known by ``take_return``.
        """
        with self._producer() as producer:
            yield {"producer": producer, "retry": True, "retry_policy": _RETRY_POLICY, **self._options}

    def _new_producer(self) -> Any:
        on_return: Any = Returns() if self.driver == "amqp" else None  # other transports have no such event
        return Producer(self._connection.clone(), on_return=on_return)

    @contextmanager
    def _producer(self) -> Iterator[Any]:
        """Lend a producer that is connected: what fails before, a login for instance, says nothing about a message.

        One whose use was interrupted, or has failed, loses its connection.
        """
        producer = self._producers.check_out() or self._new_producer()
        with OnFailure(producer.connection.collect):
            producer.connection.ensure_connection(**_RETRY_POLICY)
            yield producer
        if self._is_kept:
            self._producers.check_in(producer)
        else:
            _disconnect(producer)

    def close(self) -> None:
        """Close the connections."""
        self._producers.close()


def _disconnect(producer: Any) -> None:
    producer.connection.collect()


class EagerPublisher:
    """Runs the tasks here and now, as ``task_always_eager`` wants it."""

    inline = True

    def __init__(self, app: Celery) -> None:
        self._app = app

    def publish(self, message: Message) -> None:
        """Run a row of the outbox."""
        self.publish_signature(restored(self._app, message.payload))

    def publish_signature(self, sent: Signature[Any]) -> None:
        """Run a signature."""
        sent.apply_async()

    def probe(self) -> None:
        """Ask nobody."""

    def close(self) -> None:
        """Close nothing."""
