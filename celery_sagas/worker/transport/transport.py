"""The transport, and the poller that receives for the channels of a connection."""

import socket
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from threading import get_ident
from typing import Any, Final

from kombu import Connection
from kombu.transport import redis as kombu_redis
from kombu.utils.eventio import ERR, READ

from celery_sagas.errors import ConfigurationError
from celery_sagas.worker.transport import PREFIX, SCHEMES
from celery_sagas.worker.transport.channel import Channel
from celery_sagas.worker.transport.receiver import RECHECK_S

_redis: Any = kombu_redis
_CUT: Final = f"{PREFIX}+"
_SENTINEL: Final = "sentinel"


class Poller(_redis.MultiChannelPoller):  # type: ignore[misc]
    """Receives for all channels of a connection, in an event loop or without one."""

    def __init__(self) -> None:
        super().__init__()
        self._channel_of: dict[int, Any] = {}  #: by the descriptor of its receiver
        self._thread = 0
        self._waker: _Waker | None = None
        #: Removes a descriptor from the event loop, if there is one, or from the poller.
        self.remove: Callable[[int], object] = lambda fd: self.poller.unregister(fd)

    def wake(self) -> None:
        """End the wait for a descriptor, or the next one."""
        if (waker := self._waker) is not None:
            waker.wake()

    def wake_from_elsewhere(self) -> None:
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
            self.remove(fd)

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
            channel.read_news()
        elif fileno in self._fd_to_chan:
            super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Receive without an event loop: wait until there was a message.

        Raises:
            Empty: There was none within a second, or within the timeout.
        """
        if self._receive():
            return
        wait = RECHECK_S if timeout is None else min(timeout, RECHECK_S)
        ready = [fd for fd, _ in self.poller.poll(wait) or ()]
        is_fanout = not self._fd_to_chan.keys().isdisjoint(ready)
        for fd in ready:
            self.on_readable(fd)
        if not self._receive() and not is_fanout:
            self._keep_house()
            raise Empty

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

    def _keep_house(self) -> None:
        """Do what timers of an event loop do."""
        self.maybe_restore_messages()
        if hasattr(self, "maybe_refresh_binding_expiry"):  # since kombu 5.7
            self.maybe_refresh_binding_expiry()

    def close(self) -> None:
        """Forget all channels and descriptors."""
        waker, self._waker = self._waker, None
        for fd in [*self._channel_of, *([waker.fd] if waker else [])]:
            self.remove(fd)
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
    """kombu's transport for Redis, and for Redis behind Sentinels, that receives many messages at once."""

    Channel: Any = Channel
    #: kombu gives it the URL without the prefix.
    can_parse_url = True

    def __init__(self, client: Any, **kwargs: Any) -> None:
        """Make the transport of a connection of kombu.

        Raises:
            ConfigurationError: The URL names another broker.
        """
        super().__init__(_without_prefix(client), **kwargs)
        self.cycle = Poller()
        if self.client.transport_cls == _SENTINEL:
            self.default_port = _redis.SentinelTransport.default_port
            self.Channel = type("Channel", (self.Channel, _redis.SentinelChannel), {"__doc__": self.Channel.__doc__})

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Receive in the turns of an event loop."""
        super().register_with_event_loop(connection, loop)
        self.cycle.remove = loop.remove


def _without_prefix(client: Any) -> Any:
    """Return the connection that kombu makes of the URL without the prefix: what the rest of it says is for kombu to read."""
    hostname = client.hostname or ""
    connection = Connection(
        hostname,
        client.userid,
        client.password,
        client.virtual_host,
        client.port,
        ssl=client.ssl,
        transport=None if "://" in hostname else str(client.transport_cls).removeprefix(_CUT),
        connect_timeout=client.connect_timeout,
        transport_options=client.transport_options,
        alternates=[url.removeprefix(_CUT) for url in client.alt],
        **({"credential_provider": client.credential_provider} if hasattr(client, "credential_provider") else {}),  # kombu 5.6
    )
    if connection.transport_cls not in SCHEMES:
        schemes = ", ".join(f"{PREFIX}+{scheme}://" for scheme in SCHEMES)
        raise ConfigurationError(f"a broker URL begins with {PREFIX}+, and names no Redis server", f"Use one of {schemes}")
    return connection
