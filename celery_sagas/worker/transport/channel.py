"""The channel: takes messages with a script, and acknowledges many at once."""

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from threading import RLock
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple

from kombu.transport import redis as kombu_redis
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from kombu.utils.scheduling import priority_cycle
from redis import ConnectionError as ConnectionLost
from redis import RedisError

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.transport import PREFIX
from celery_sagas.worker.transport.away import away_is_lost
from celery_sagas.worker.transport.qos import QoS
from celery_sagas.worker.transport.receiver import CONNECTIONS, MAX_MESSAGES, RECHECK_S, Answer, Lists, Receiver, Taken

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

    queue: str
    handle: Callable[[Any], object]
    no_ack: bool


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
        self._consumers_by_tag: dict[str, _Consumer] = {}
        self._consumers_of: dict[str, _Consumer] = {}
        self._taken: deque[tuple[str, Any]] = deque()  #: messages with their queues
        self._commanding = RLock()
        with away_is_lost():
            super().__init__(*args, **kwargs)

    def basic_consume(self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **kwargs: Any) -> Any:
        """Begin to consume from a queue."""
        self._consumers_by_tag[consumer_tag] = _Consumer(queue, callback, no_ack)
        self._update_consumers()
        if self.receiver is not None:
            self.receiver.look_again()  # the server says nothing of this queue yet
        return super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Stop to consume, at once: kombu's own waits for the answer to a command, of which there is none here."""
        return self._basic_cancel(consumer_tag)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        self._consumers_by_tag.pop(consumer_tag, None)
        self._update_consumers()
        result = super()._basic_cancel(consumer_tag)
        if not self._closing:  # else all that is unacknowledged is put back
            self._put_back()
        return result

    def _update_consumers(self) -> None:
        self._consumers_of = {consumer.queue: consumer for consumer in self._consumers_by_tag.values()}

    def _put_back(self) -> None:
        """Put back, in their order, messages that were taken and have no consumer any more."""
        left = [message for queue, message in self._taken if queue not in self._consumers_of]
        self._taken = deque((queue, message) for queue, message in self._taken if queue in self._consumers_of)
        for message in reversed(left):
            self.qos.restore_by_tag(message.delivery_tag)
            virtual.QoS.ack(self.qos, message.delivery_tag)

    def forget_taken(self) -> None:
        """Hand over no more of what was taken: it is put back with all that is unacknowledged."""
        self._taken.clear()

    def receive(self) -> bool:
        """Take what may be prefetched, and hand the messages to their consumers.

        Returns:
            Whether there was a message.

        Raises:
            ConfigurationError: The server cannot be received from.
            redis.ConnectionError: The server is away, or has closed a connection as soon as it was opened.
            redis.ResponseError: One of the lists is none.
        """
        if not self._taken:
            self._take()
        ends_at = monotonic() + _HANDING_OVER_S
        is_any = bool(self._taken)
        while self._taken:
            queue, message = self._taken.popleft()
            self._hand_over(self._consumers_of[queue], message)
            if monotonic() > ends_at:
                break
        return is_any

    def _take(self) -> None:
        receiver, most = self._open_receiver(), self.qos.can_consume_max_estimate()
        if most == 0 or receiver.is_idle:
            return
        queues = self._queue_cycle.consume(len(self.active_queues))
        with ExitStack() as on_error:
            on_error.callback(self.close_receiver)
            try:
                answer = receiver.take(self._lists_of(queues), min(most or MAX_MESSAGES, MAX_MESSAGES))
            except ConnectionLost as exc:
                self._replace_receiver(exc)
                answer = Answer([], None)  # what the script may have taken comes back after the visibility time-out
            on_error.pop_all()
        for queue in reversed(dict.fromkeys(each.queue for each in reversed(answer.messages))):  # each where it was last
            self._queue_cycle.rotate(queue)
        self._keep(answer.messages)
        if answer.error:
            raise answer.error
        if not answer.messages and not self._open_receiver().is_idle:  # there is one that came after the script
            self.connection.cycle.wake()

    def read_invalidations(self) -> None:
        """Read what the server has written to the receiver: there may be messages."""
        receiver = self._open_receiver()
        try:
            receiver.read_invalidations()
        except (RedisError, OSError) as exc:
            self._replace_receiver(exc)

    def check_server(self) -> None:
        """See whether the server can be received from.

        Raises:
            ConfigurationError: It cannot.
            redis.ConnectionError: The server is away.
        """
        self._open_receiver()
        self.close_receiver()

    def _open_receiver(self) -> Receiver:
        if not self.ack_emulation:
            raise ConfigurationError(
                "the broker transport option ack_emulation is False, so that a killed worker would lose what it has taken",
                "Remove it, or name the broker redis://",
            )
        if self.receiver is None:
            # not of the other pool: before kombu 5.7 the event loop stops to receive when one of its connections is closed
            self.receiver = Receiver(self.pool, self._prefixed([self.unacked_key, self.unacked_index_key]))
            self.connection.cycle.watch(self)
        return self.receiver

    def _replace_receiver(self, error: Exception) -> None:
        """Open a receiver in place of one whose connections were lost: no message is restored that runs.

        Raises:
            redis.ConnectionError: They were lost as soon as they had been opened, or the server is away.
        """
        opened_at = self._open_receiver().opened_at
        self.close_receiver()
        if monotonic() - opened_at < RECHECK_S:
            raise ConnectionLost(f"Cannot receive from the Redis broker: {error}") from error
        logger.info("opening the connections to the Redis broker again: %r", error)
        self._open_receiver()

    def close_receiver(self) -> None:
        """Close the receiver's connections; the next call of ``receive`` opens others."""
        if self.receiver is not None:
            self.connection.cycle.unwatch(self)
            self.receiver.close()
            self.receiver = None

    def _lists_of(self, queues: Sequence[str]) -> Lists:
        keys = [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        return Lists(self._prefixed(keys), queues, 1 if isinstance(self._queue_cycle, priority_cycle) else len(queues))

    def _prefixed(self, keys: Sequence[str]) -> list[str]:
        return [self.global_keyprefix + key for key in keys]

    def _keep(self, taken: Sequence[Taken]) -> None:
        """Keep messages until they are handed over; move those that cannot be read to a list."""
        unreadable = []
        for each in taken:
            try:
                payload = loads(bytes_to_str(each.message))
                payload["properties"]["delivery_tag"] = each.tag
                message = self.Message(payload, channel=self)
                virtual.QoS.append(self.qos, message, each.tag)
                self._taken.append((each.queue, message))
            except Exception as exc:  # whatever a codec raises
                unreadable.append((each, exc))
        for each, error in unreadable:
            self.set_aside(each.queue, each.tag, each.message, error)

    def set_aside(self, source: str, tag: str, element: bytes | None, error: Exception) -> None:
        """Move what cannot be read, and is noted under a tag, to a list that nobody consumes from."""
        target = f"{source}.unreadable"
        with self.conn_or_acquire() as client:
            pipeline = client.pipeline().hdel(self.unacked_key, tag).zrem(self.unacked_index_key, tag)
            (pipeline if element is None else pipeline.lpush(target, element)).execute()
        shown = (element or b"")[:_SHOWN]
        logger.critical("moved a message from %s to the list %s, since it cannot be read: %r: %r", source, target, error, shown)

    def _hand_over(self, consumer: _Consumer, message: Any) -> None:
        if consumer.no_ack:
            self.qos.ack(message.delivery_tag)
        consumer.handle(message)

    def ack_many(self, tags: Sequence[str]) -> None:
        """Acknowledge messages in one round trip, from any thread.

        Raises:
            redis.ConnectionError: The channel was closed, or the connection was lost: the messages are delivered again.
        """
        with self.settling(tags):
            if tags:
                # The hash first, and no MULTI: a server without memory refuses that, and a tag without its message is harmless.
                with self.conn_or_acquire() as client:
                    pipeline = client.pipeline(transaction=False)
                    pipeline.hdel(self.unacked_key, *tags).zrem(self.unacked_index_key, *tags).execute()

    @contextmanager
    def settling(self, tags: Sequence[str]) -> Iterator[None]:
        """Let others be taken in place of these messages, also if the server does not answer: they come back in their time.

        Raises:
            redis.ConnectionError: The channel was closed; the messages are delivered again.
        """
        if self.connection is None:
            raise ConnectionLost("The channel of the message was closed; the message is delivered again.")
        try:
            yield
        finally:
            for tag in tags:
                virtual.QoS.ack(self.qos, tag)
            self.wake()

    def wake(self) -> None:
        """Let the thread that receives see that more may be taken."""
        if (connection := self.connection) is not None:
            connection.cycle.wake_from_another_thread()

    @cached_property
    def client_kept(self) -> Any:
        """One client for all commands but those of the receiver; its connections are those of a pool."""
        return self._create_client()

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """Yield a client for some commands: the one that is kept, where kombu makes a new one each time.

        Other threads, and greenlets, wait: a pool whose connections are all in use raises, and an acknowledgement would be lost.
        """
        with self._commanding, away_is_lost():
            yield client or self.client_kept

    def close(self) -> None:
        """Close the channel, and put back what is unacknowledged."""
        if not self.closed:
            self.close_receiver()
            self.forget_taken()
        super().close()
        if (client := self.__dict__.get("client_kept")) is not None:
            client.connection_pool.disconnect()

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        params = super()._connparams(asynchronous)
        if params["max_connections"] and not asynchronous:
            params["max_connections"] += CONNECTIONS
        # In RESP3 what the server writes unasked comes in between the answers.
        return {**params, "protocol": 2}


class SentinelChannel(Channel, _redis.SentinelChannel):  # type: ignore[misc]
    """A channel to the server that Sentinels name."""

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> Any:
        """kombu finds the other Sentinels in URLs with the scheme of its own transport."""
        client = self.connection.client
        urls, client.alt = client.alt, [url.removeprefix(PREFIX) for url in client.alt]
        try:
            return super()._sentinel_managed_pool(asynchronous)
        finally:
            client.alt = urls
