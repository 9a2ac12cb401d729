"""A small HTTP server for metrics, in threads of its own."""

import logging
import os
import socket
import socketserver
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from celery_sagas.connections import place_of

logger = logging.getLogger("celery_sagas")

#: Seconds until a port that is taken is tried again: that of a worker that ends, until it has.
_AGAIN_S: Final = 5.0
#: Seconds for a client to send its request, and to take the answer.
_CLIENT_S: Final = 10.0
#: Seconds between two calls of what is done beside.
_BESIDE_S: Final = 2.0

#: A WSGI application.
Application = Callable[..., Any]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind; the name of the host, which another class looks up, is not needed."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log no request: one comes every few seconds."""


class MetricsServer:
    """Serves an application on an address, until it is stopped.

    Args:
        address: As ``place_of`` reads it.
        application: What answers each request.
        beside: Is called every few seconds, in the server's thread.
    """

    def __init__(self, address: str, application: Application, beside: Callable[[], object] = lambda: None) -> None:
        self.address = address
        self._place = place_of(address)
        self._application = application
        self._beside = beside
        self._server: _Server | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="celery-sagas-metrics", daemon=True)

    def open(self) -> None:
        """Bind the address.

        Raises:
            OSError: It is taken, or none of this machine's.
        """
        host, port = self._place
        family, *_, place = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]  # noqa: S104 - documented
        kind = type("_ServerOf", (_Server,), {"address_family": family})
        server = kind(place[:2], _Handler)
        server.set_app(self._application)
        server.timeout = _BESIDE_S
        self._server = server
        _open.add(self)

    def start(self) -> None:
        """Serve from now on; an address that is not bound is tried again until it is free."""
        self._thread.start()

    def stop(self) -> None:
        """Serve no longer."""
        self._stopping.set()
        self.close()

    def close(self) -> None:
        """Close the address."""
        server, self._server = self._server, None
        if server is not None:
            server.server_close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                server = self._server or self._bound()
                if server is None:
                    self._stopping.wait(_AGAIN_S)
                else:
                    server.handle_request()  # or returns after its time-out
                self._beside()
            except Exception:
                if not self._stopping.is_set():  # else the socket was closed under it
                    logger.exception("the metrics on %s met with an error, and go on", self.address)
                    self._stopping.wait(_AGAIN_S)

    def _bound(self) -> _Server | None:
        try:
            self.open()
        except OSError:
            return None
        logger.info("metrics are served on %s", self.address)
        return self._server


#: Those of this process.
_open: WeakSet[MetricsServer] = WeakSet()


def _close_after_fork() -> None:
    """Close what the parent listens on: else its port would stay taken when it has ended, and this process has not."""
    for server in list(_open):
        server.close()
    _open.clear()


os.register_at_fork(after_in_child=_close_after_fork)
