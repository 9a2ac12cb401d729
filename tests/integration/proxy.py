"""A TCP proxy between a worker and a server, which does what networks do."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

_CHUNK = 65_536
#: AMQP: what a client says before any frame, a frame's header (type, channel, size), and how many bytes it adds to its payload.
_GREETING, _HEADER, _AROUND = b"AMQP", struct.Struct(">BHL"), 8
#: The type of a method's frame, and what begins the payload of ``basic.ack``: an acknowledgement, or the broker's confirm.
_METHOD, _ACK = 1, struct.pack(">HH", 60, 80)


class Proxy:
    """Forwards connections to a server until told otherwise."""

    def __init__(self, url: str, default_port: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or default_port)
        self._links: list[_Link] = []
        self._is_amqp = parts.scheme.startswith(("amqp", "pyamqp"))
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._swallow: tuple[bytes, ...] = ()
        self.swallowed = 0  #: answers
        self.requests = 0  #: as many as the clients waited between
        self.lost = 0  #: acknowledgements and confirms
        self._listener: socket.socket | None = self._listen(0)
        self._port = self._listener.getsockname()[1]
        user, at, _ = parts.netloc.rpartition("@")
        self.url = parts._replace(netloc=f"{user}{at}127.0.0.1:{self._port}").geturl()

    def cut(self) -> None:
        """Reset every connection."""
        with self._lock:
            cut, self._links = self._links, []
        for each in cut:
            each.end()

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

    def deafen(self) -> None:
        """Let nothing through any more that the clients say over their present connections."""
        with self._lock:
            for each in self._links:
                each.is_deaf = True

    def lose_confirms(self) -> None:
        """Let none of RabbitMQ's confirms through any more over the present connections."""
        with self._lock:
            for each in self._links:
                each.is_losing_confirms = True

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
        link = _Link(self, client, server)
        with self._lock:
            self._links.append(link)
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

    def received(self, source: socket.socket) -> Iterator[bytes]:
        """Yield what comes: of AMQP frame by frame."""
        return _frames(_received(source)) if self._is_amqp else _received(source)

    def lose(self, data: bytes) -> None:
        """Count an acknowledgement, or a confirm, that is lost."""
        with self._lock:
            self.lost += _is_ack(data)


class _Link:
    """One connection, both ways."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_swallowing = False
        self.is_deaf = False
        self.is_losing_confirms = False

    def end(self) -> None:
        """Reset it."""
        _reset(self._client)
        _reset(self._server)

    def requests(self) -> None:
        """Forward what the client says."""
        for data in self._proxy.received(self._client):
            self._proxy.wait()
            if self.is_deaf:
                self._proxy.lose(data)
                continue
            self._is_swallowing = self._proxy.wants(data) or self._is_swallowing
            if not _send(self._server, data):
                break
        _reset(self._server)

    def answers(self) -> None:
        """Forward what the server says."""
        for data in self._proxy.received(self._server):
            self._proxy.wait()
            if self.is_losing_confirms and _is_ack(data):
                self._proxy.lose(data)
                continue
            if self._is_swallowing:
                self._proxy.swallowed += 1
                break
            if not _send(self._client, data):
                break
        self.end()


def _received(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            yield data


def _frames(received: Iterator[bytes]) -> Iterator[bytes]:
    """Yield AMQP's frames, and what stands before them."""
    buffer = b""
    for data in received:
        buffer += data
        while len(buffer) >= _AROUND and len(buffer) >= (size := _size_of(buffer)):
            yield buffer[:size]
            buffer = buffer[size:]


def _size_of(buffer: bytes) -> int:
    """Return the size of the frame, or the greeting, with which this begins."""
    return _AROUND if buffer.startswith(_GREETING) else _AROUND + int(_HEADER.unpack_from(buffer)[2])


def _is_ack(frame: bytes) -> bool:
    return frame[0] == _METHOD and frame[_HEADER.size :].startswith(_ACK)


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
