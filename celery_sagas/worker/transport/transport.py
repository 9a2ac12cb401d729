"""The transport, and the poller that receives for the channels of a connection."""

import logging
import socket
import ssl
from contextlib import ExitStack, suppress
from queue import Empty
from threading import get_ident
from time import monotonic
from typing import Any, Final

from kombu.transport import redis as kombu_redis
from kombu.utils.eventio import ERR, READ
from redis import ResponseError

from celery_sagas.forks import Process
from celery_sagas.worker.transport import PREFIX
from celery_sagas.worker.transport.away import away_is_lost
from celery_sagas.worker.transport.channel import Channel, SentinelChannel
from celery_sagas.worker.transport.receiver import RECHECK_S

_redis: Any = kombu_redis
logger = logging.getLogger("celery_sagas")
#: The scheme of a server with TLS.
_TLS: Final = f"{PREFIX}rediss"


class Poller(_redis.MultiChannelPoller):  # type: ignore[misc]
    """Receives for all channels of a connection, in an event loop or without one."""

    def __init__(self) -> None:
        super().__init__()
        self._channel_of: dict[int, Any] = {}  #: by the descriptor of its receiver
        self._thread = 0
        self._process = Process()
        self._waker: _Waker | None = None
        self._restores_at = monotonic() + RECHECK_S
        self.loop: Any = None  #: the event loop, if there is one
        self._timer: Any = None

    def enter(self, loop: Any) -> None:
        """Receive in the turns of an event loop, of which there is one at least as often as the lists are read in any case."""
        self._stop_timer()
        self.loop, self._timer = loop, loop.call_repeatedly(RECHECK_S, self.wake)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

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
        for fd in channel.receiver.filenos():
            self._channel_of[fd] = channel
            self.poller.register(fd, READ | ERR)
        self._process = Process()

    def unwatch(self, channel: Any) -> None:
        """Wait no longer for a channel's receiver."""
        for fd in [fd for fd, other in self._channel_of.items() if other is channel]:
            del self._channel_of[fd]
            self._remove(fd)

    def _remove(self, fd: int) -> None:
        if self._process.is_child:
            return  # it shares the poller, and its parent still waits
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
            if self.loop is not None and (pause_s := self._pause_s(monotonic())) < RECHECK_S:
                self.loop.call_later(pause_s, self.wake)
        elif fileno in self._fd_to_chan:
            with away_is_lost():
                super().on_readable(fileno)

    def get(self, callback: Any, timeout: float | None = None) -> None:
        """Receive without an event loop: wait until there was a message.

        Raises:
            Empty: There was none within a second, or within the timeout.
        """
        self._do_what_timers_do()
        now, is_any = monotonic(), self._receive()
        pause_s = self._pause_s(now)
        wait_s = pause_s if timeout is None else min(timeout, pause_s)
        is_any = self._read_ready(0 if is_any else wait_s) or is_any
        if not is_any and not self._receive():
            raise Empty

    def _pause_s(self, now: float) -> float:
        """Return the seconds until a receiver looks for what it was told of, or until the lists are read in any case."""
        times: list[float] = [channel.receiver.looks_at for channel in self._channel_of.values()]
        return min([RECHECK_S, *(looks_at - now for looks_at in times if looks_at > now)])

    def _read_ready(self, wait_s: float) -> bool:
        """Wait for descriptors, read those that are readable, and return whether one was that of a fanout exchange."""
        ready = [fd for fd, _ in self.poller.poll(wait_s) or ()]
        is_fanout = not self._fd_to_chan.keys().isdisjoint(ready)
        for fd in ready:
            self.on_readable(fd)
        return is_fanout

    def _do_what_timers_do(self) -> None:
        """Keep the bindings of queues that expire (since kombu 5.7), and restore messages, as an event loop's timers do."""
        if hasattr(self, "maybe_refresh_binding_expiry"):
            self.maybe_refresh_binding_expiry()
        if (now := monotonic()) >= self._restores_at:
            self._restores_at = now + RECHECK_S
            self._restore()

    def _restore(self) -> None:
        try:
            self.maybe_restore_messages()
        except ResponseError:  # the event loop logs it, too: such as that the server has no memory left
            logger.exception("cannot restore messages")

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
        self._stop_timer()
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
        if client.ssl is True or (client.transport_cls == _TLS and not client.ssl):
            # kombu knows its own scheme alone, and checks no certificate; it takes True for no TLS
            client.ssl = {"ssl_cert_reqs": ssl.CERT_REQUIRED}

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
        self.cycle.enter(loop)


class SentinelTransport(Transport):
    """The same for Redis behind Sentinels."""

    default_port = _redis.SentinelTransport.default_port
    Channel = SentinelChannel
