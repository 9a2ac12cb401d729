"""The channel: takes messages with a script, and acknowledges many at once."""

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle
from redis import ConnectionError as ConnectionLost

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.transport.receiver import MAX_MESSAGES, Lists, Receiver, Taken

_redis: Any = kombu_redis
logger = logging.getLogger("celery_sagas")

#: How much of a message that cannot be read is logged.
_SHOWN: Final = 500
#: Seconds after which messages that were taken wait for the next turn of the event loop, which has other work too.
_HANDING_OVER_S: Final = 0.05
#: When a silent connection is probed and given up, so that a server that vanished without a word is noticed: 30 + 3 * 10 seconds.
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class _Consumer(NamedTuple):
    """What handles the messages of a queue."""

    handle: Callable[[Any], object]
    no_ack: bool


class QoS(_redis.QoS):  # type: ignore[misc]
    """The messages that are not acknowledged: the channel knows how many, the server knows which."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message."""
        self.channel.ack_many([delivery_tag])

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Put a message back into its queue, or drop it."""
        self.channel.require_open()
        super().reject(delivery_tag, requeue=requeue)
        self.channel.wake()


class Channel(_redis.Channel):  # type: ignore[misc]
    """A channel that takes as many messages at once as may be prefetched.

    A message is noted as unacknowledged in the script that takes it from its list: a process that is killed loses none.
    """

    QoS = QoS
    #: Seconds that the server may take to answer: without a limit a worker waits for a server that hangs, and does nothing else.
    socket_timeout = 30.0
    socket_keepalive = True
    socket_keepalive_options: ClassVar = {getattr(socket, name): s for name, s in _KEEPALIVE.items() if hasattr(socket, name)}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.receiver: Receiver | None = None
        self._consumers_of: dict[str, _Consumer] = {}
        self._taken: deque[tuple[str, Any]] = deque()
        super().__init__(*args, **kwargs)

    def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], object], *args: Any, **kwargs: Any) -> Any:
        """Begin to consume from a queue."""
        self._consumers_of[queue] = _Consumer(callback, no_ack)
        if self.receiver is not None:
            self.receiver.look_again()  # the server says nothing of this queue yet
        return super().basic_consume(queue, no_ack, callback, *args, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop to consume, at once: kombu's own waits for the answer to a command, of which there is none here."""
        return self._basic_cancel(consumer_tag)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        self._consumers_of.pop(queue, None)
        if not self._closing:  # else all that is unacknowledged is put back
            self._put_back(queue)
        return super()._basic_cancel(consumer_tag)

    def _put_back(self, queue: str | None) -> None:
        """Put back, in their order, the messages of a queue that were taken and not handed over."""
        messages = [message for name, message in self._taken if name == queue]
        self._taken = deque((name, message) for name, message in self._taken if name != queue)
        for message in reversed(messages):
            self.qos.restore_by_tag(message.delivery_tag)
            virtual.QoS.ack(self.qos, message.delivery_tag)

    def receive(self) -> bool:
        """Take what may be prefetched, and hand the messages to their consumers.

        Returns:
            Whether there was a message.

        Raises:
            ConfigurationError: The server cannot be received from.
            redis.ConnectionError: The connection was lost.
        """
        if not self._taken:
            self._take()
        ends_at = monotonic() + _HANDING_OVER_S
        is_any = bool(self._taken)
        while self._taken:
            self._hand_over(*self._taken.popleft())
            if monotonic() > ends_at:
                break
        return is_any

    def _take(self) -> None:
        most = self.qos.can_consume_max_estimate()
        if most == 0 or (self.receiver and self.receiver.is_idle):
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        with self._closing_receiver_on_error() as receiver:
            messages = receiver.take(self._lists_of(queues), min(most or MAX_MESSAGES, MAX_MESSAGES))
        for taken in messages:
            self._keep(queues[taken.list % len(queues)], taken)
        self._queue_cycle.rotate(queues[0])

    def read_news(self) -> None:
        """Read what the server has written to the receiver: there may be messages."""
        with self._closing_receiver_on_error() as receiver:
            receiver.read_news()

    @contextmanager
    def _closing_receiver_on_error(self) -> Iterator[Receiver]:
        with ExitStack() as stack:
            stack.callback(self.close_receiver)
            yield self._open_receiver()
            stack.pop_all()

    def _open_receiver(self) -> Receiver:
        if not self.ack_emulation:
            raise ConfigurationError(
                "the broker transport option ack_emulation is False, so that a killed worker would lose what it has taken",
                "Remove it, or name the broker redis://",
            )
        if self.receiver is None:
            self.receiver = Receiver(self.async_pool, self._prefixed([self.unacked_key, self.unacked_index_key]))
            self.connection.cycle.watch(self)
        return self.receiver

    def close_receiver(self) -> None:
        """Close the receiver's connections; the next call of ``receive`` opens others."""
        if self.receiver is not None:
            self.connection.cycle.unwatch(self)
            self.receiver.close()
            self.receiver = None

    def _lists_of(self, queues: Sequence[str]) -> Lists:
        keys = [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        return Lists(self._prefixed(keys), 1 if isinstance(self._queue_cycle, priority_cycle) else len(queues))

    def _prefixed(self, keys: Sequence[str]) -> list[str]:
        return [self.global_keyprefix + key for key in keys]

    def _keep(self, queue: str, taken: Taken) -> None:
        """Keep a message that was taken until it is handed over; one that cannot be read is logged and dropped."""
        try:
            message = self._message_of(taken)
        except (AttributeError, KeyError, TypeError, ValueError):
            shown = taken.message[:_SHOWN]
            logger.critical(
                "dropped a message of the queue %s, which is not what kombu publishes: %r", queue, shown, exc_info=True
            )
            if taken.tag:
                self._forget([taken.tag])
        else:
            self._taken.append((queue, message))

    def _message_of(self, taken: Taken) -> Any:
        payload = loads(bytes_to_str(taken.message))
        if taken.tag:
            payload["properties"]["delivery_tag"] = taken.tag
        message = self.Message(payload, channel=self)
        if taken.tag:
            virtual.QoS.append(self.qos, message, taken.tag)
        else:  # what Lua does not read is noted as kombu's own transport does, after it was taken
            self.qos.append(message, message.delivery_tag)
        return message

    def _hand_over(self, queue: str, message: Any) -> None:
        consumer = self._consumers_of[queue]
        if consumer.no_ack:
            self.qos.ack(message.delivery_tag)
        consumer.handle(message)

    def ack_many(self, tags: Sequence[str]) -> None:
        """Acknowledge messages in one round trip, from any thread.

        Raises:
            redis.ConnectionError: The channel was closed, or the connection was lost: the messages are delivered again.
        """
        self.require_open()
        self._forget(tags)
        for tag in tags:
            virtual.QoS.ack(self.qos, tag)
        self.wake()

    def _forget(self, tags: Sequence[str]) -> None:
        self.kept.pipeline().hdel(self.unacked_key, *tags).zrem(self.unacked_index_key, *tags).execute()

    def require_open(self) -> None:
        """Raise redis-py's ``ConnectionError``, as for a connection that was lost, if the channel was closed."""
        if self.connection is None:
            raise ConnectionLost("The channel of the message was closed; the message is delivered again.")

    def wake(self) -> None:
        """Let the thread that receives see that more may be taken."""
        if (connection := self.connection) is not None:
            connection.cycle.wake_from_elsewhere()

    @cached_property
    def kept(self) -> Any:
        """One client for all commands but those of the receiver; its connections are those of a pool."""
        return self._create_client()

    def conn_or_acquire(self, client: Any = None) -> AbstractContextManager[Any]:
        """Return a client for some commands: the one that is kept, where kombu makes a new one each time."""
        return nullcontext(client or self.kept)

    def close(self) -> None:
        """Close the channel, and put back what is unacknowledged."""
        if not self.closed:
            self.close_receiver()
        super().close()
        if "kept" in self.__dict__:
            self.kept.connection_pool.disconnect()

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # In RESP3 what the server writes unasked comes in between the answers.
        return {**super()._connparams(asynchronous), "protocol": 2}
