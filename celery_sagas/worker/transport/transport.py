"""The transport, and the poller that receives for the channels of a connection."""

import socket
import ssl
from contextlib import ExitStack, suppress
from queue import Empty
from threading import get_ident
from typing import Any, Final

from kombu.transport import redis as kombu_redis
from kombu.utils.eventio import ERR, READ

from celery_sagas.worker.transport import PREFIX
from celery_sagas.worker.transport.channel import Channel, SentinelChannel
from celery_sagas.worker.transport.receiver import RECHECK_S

_redis: Any = kombu_redis
#: The scheme of a server with TLS.
_TLS: Final = f"{PREFIX}rediss"


class Poller(_redis.MultiChannelPoller):  # type: ignore[misc]
    """Receives for all channels of a connection, in an event loop or without one."""

    def __init__(self) -> None:
        super().__init__()
        self._channel_of: dict[int, Any] = {}  #: by the descriptor of its receiver
        self._thread = 0
        self._waker: _Waker | None = None
        self.loop: Any = None  #: the event loop, if there is one

    def wake(self) -> None:
        """End the wait for a descriptor, or the next one."""
        if (waker := self._waker) is not None:
            waker.wake()

    def wake_from_another_thread(self) -> None:
        """End the wait of the thread that receives, if this is another."""
        if get_ident() != self._thread:
            self.wake()

    def watch(self, channel: Any) -> None:
        """Wait for what the server writes to a channel's receiver."""
        if self._waker is None:
            self._waker = _Waker()
            self.poller.register(self._waker.fd, READ | ERR)
        fd = channel.receiver.fileno()
        self._channel_of[fd] = channel
        self.poller.register(fd, READ | ERR)

    def unwatch(self, channel: Any) -> None:
        """Wait no longer for a channel's receiver."""
        for fd in [fd for fd, other in self._channel_of.items() if other is channel]:
            del self._channel_of[fd]
            self._remove(fd)

    def _remove(self, fd: int) -> None:
        if self.loop is None:
            self.poller.unregister(fd)
        else:
            self.loop.remove(fd)

    @property
    def fds(self) -> dict[int, Any]:
        """Return the descriptors for an event loop to watch."""
        waker = {self._waker.fd: None} if self._waker else {}
        return {**super().fds, **self._channel_of, **waker}

    def on_poll_start(self) -> None:
        """Receive, in each turn of an event loop."""
        if self._receive():
            self.wake()  # there may be more

    def on_readable(self, fileno: int) -> None:
        """Read what has made a descriptor readable."""
        if self._waker and fileno == self._waker.fd:
            self._waker.read()
        elif channel := self._channel_of.get(fileno):
            channel.read_invalidations()
        elif fileno in self._fd_to_chan:
            super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Receive without an event loop: wait until there was a message.

        Raises:
            Empty: There was none within a second, or within the timeout.
        """
        self._refresh_bindings()
        if self._receive():
            return
        wait = RECHECK_S if timeout is None else min(timeout, RECHECK_S)
        ready = [fd for fd, _ in self.poller.poll(wait) or ()]
        is_fanout = not self._fd_to_chan.keys().isdisjoint(ready)
        for fd in ready:
            self.on_readable(fd)
        if not self._receive() and not is_fanout:
            self.maybe_restore_messages()
            raise Empty

    def _refresh_bindings(self) -> None:
        """Keep the bindings of queues that expire, as a timer of the event loop does: since kombu 5.7."""
        if hasattr(self, "maybe_refresh_binding_expiry"):
            self.maybe_refresh_binding_expiry()

    def _receive(self) -> bool:
        """Hand over messages that have come, and return whether there were any."""
        self._thread = get_ident()
        is_any = False
        for channel in list(self._channels):
            if channel.active_fanout_queues:
                self._register_LISTEN(channel)
            if channel.active_queues:
                is_any = channel.receive() or is_any
        return is_any

    def close(self) -> None:
        """Forget all channels and descriptors."""
        waker, self._waker = self._waker, None
        for fd in [*self._channel_of, *([waker.fd] if waker else [])]:
            self._remove(fd)
        self._channel_of.clear()
        super().close()
        if waker:
            waker.close()


class _Waker:
    """Makes a descriptor readable, from any thread."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._read_end.setblocking(False)
        self._write_end.setblocking(False)
        self.fd = self._read_end.fileno()

    def wake(self) -> None:
        with suppress(OSError):  # it is full, so that it is readable; or it is closed
            self._write_end.send(b"\0")

    def read(self) -> None:
        with suppress(BlockingIOError):
            self._read_end.recv(4096)

    def close(self) -> None:
        self._read_end.close()
        self._write_end.close()


class Transport(_redis.Transport):  # type: ignore[misc]
    """kombu's transport for Redis, that receives many messages at once."""

    Channel: Any = Channel

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.cycle = Poller()
        if client.transport_cls == _TLS and not client.ssl:
            client.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}  # kombu knows its own scheme alone, and checks no certificate

    def establish_connection(self) -> Any:
        """Connect, and see whether the server can be received from before anything else is asked of it.

        Raises:
            ConfigurationError: It cannot.
            redis.ConnectionError: The server is away.
        """
        connection = super().establish_connection()
        with ExitStack() as on_error:
            on_error.callback(self.close_connection, connection)
            self._avail_channels[-1].check_server()
            on_error.pop_all()
        return connection

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Receive in the turns of an event loop."""
        super().register_with_event_loop(connection, loop)
        self.cycle.loop = loop


class SentinelTransport(Transport):
    """The same for Redis behind Sentinels."""

    default_port = _redis.SentinelTransport.default_port
    Channel = SentinelChannel
