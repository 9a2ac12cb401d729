"""A TCP proxy between a worker and a server, which does what networks do."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_CHUNK = 65_536


class Proxy:
    """Forwards connections to a server until told otherwise."""

    def __init__(self, url: str, default_port: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or default_port)
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._swallow: tuple[bytes, ...] = ()
        self.swallowed = 0  #: answers
        self.requests = 0  #: as many as the clients waited between
        self._listener: socket.socket | None = self._listen(0)
        self._port = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}").geturl()

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            cut, self._sockets = self._sockets, []
        for each in cut:
            _reset(each)

    def refuse(self) -> None:
        """Reset every connection and accept no other."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self.cut()

    def accept(self) -> None:
        """Accept connections again, after ``refuse``."""
        self._listener = self._listen(self._port)

    def silence(self) -> None:
        """Keep connections and accept others, but let nothing through."""
        self._flowing.clear()

    def speak(self) -> None:
        """Let everything through again, after ``silence``."""
        self._flowing.set()

    def swallow(self, *requests: bytes) -> None:
        """Wait for a request that contains one of these; when the server has answered it, cut the connection instead."""
        self._swallow = requests

    def close(self) -> None:
        """End it."""
        self.speak()
        self.refuse()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._flowing.wait()
        try:
            server = socket.create_connection(self._target)
        except OSError:
            _reset(client)
            return
        with self._lock:
            self._sockets += [client, server]
        link = _Link(self, client, server)
        threading.Thread(target=link.requests, daemon=True).start()
        link.answers()

    def wants(self, request: bytes) -> bool:
        """Tell whether the answer to this request is to be swallowed; once."""
        with self._lock:
            self.requests += 1
            wanted = any(each in request for each in self._swallow)
            if wanted:
                self._swallow = ()
            return wanted

    def wait(self) -> None:
        """Wait while it is silent."""
        self._flowing.wait()


class _Link:
    """One connection, both ways."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_swallowing = False

    def requests(self) -> None:
        """Forward what the client says."""
        for data in _received(self._client):
            self._proxy.wait()
            self._is_swallowing = self._proxy.wants(data) or self._is_swallowing
            if not _send(self._server, data):
                break
        _reset(self._server)

    def answers(self) -> None:
        """Forward what the server says."""
        for data in _received(self._server):
            self._proxy.wait()
            if self._is_swallowing:
                self._proxy.swallowed += 1
                break
            if not _send(self._client, data):
                break
        _reset(self._client)
        _reset(self._server)


def _received(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            yield data


def _send(target: socket.socket, data: bytes) -> bool:
    try:
        target.sendall(data)
    except OSError:
        return False
    return True


def _reset(connection: socket.socket) -> None:
    """Close a connection so that its other end sees an error at once, and a thread that reads it here does too."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)
    connection.close()
