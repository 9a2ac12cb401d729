"""Connections: those that stay open between two uses, and what is written over one."""

import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


#: The largest number of idle connections that stay open.
MOST_IDLE = 15
#: How the names of threads begin that end soon: what they have opened for themselves is closed with each use.
BRIEF: Final = "celery-sagas-brief-"
#: Has a TCP socket send full packets only; Linux alone has it.
_CORK: Final[int | None] = getattr(socket, "TCP_CORK", None)


class IdleConnections(Generic[T]):
    """The idle connections to one place: a bounded number, not all that a burst has opened.

    A connection is checked out for each use, and checked in only after a successful one: a time limit may strike anywhere, and
    the next reply on an interrupted connection is unpredictable. No lock or counter is used, which an interruption could leave.

    Connections are not bound to threads: under gevent and eventlet each task has its own greenlet, and would connect each time.

    Args:
        close: Closes a connection.
        most: The largest number of idle connections.
    """

    def __init__(self, close: Callable[[T], object], most: int = MOST_IDLE) -> None:
        self._close = close
        self._most = most
        self._idle: deque[T] = deque()
        self._is_closed = False
        _all.add(self)

    @property
    def idle(self) -> int:
        """The number of idle connections."""
        return len(self._idle)

    def check_out(self) -> T | None:
        """Return the connection that was used last, for exclusive use; ``None`` if a new one is needed."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def check_in(self, connection: T) -> None:
        """Keep a connection for the next use, or close it if there are enough."""
        if len(self._idle) >= self._most:
            self._close(connection)
            return
        self._idle.append(connection)
        if self._is_closed:
            self.close_idle()

    def close_idle(self) -> None:
        """Close the idle connections."""
        while (connection := self.check_out()) is not None:
            self._close(connection)

    def close(self) -> None:
        """Close the idle connections now, and the others when they are checked in."""
        self._is_closed = True
        self.close_idle()

    def after_fork_in_child(self) -> None:
        """Leave the connections to the parent process after a fork: closing a shared socket would end it there, too."""
        _inherited.append(self._idle)
        self._idle = deque()


class OnFailure:
    """A context manager that undoes something if its block raises any exception."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        """Undo nothing yet."""

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._undo()


def hold_packets(sock: Any, is_held: bool) -> None:
    """Have a TCP socket hold what is written until it fills a packet, or until it is held no longer; for 0.2 seconds at most.

    Where many small commands are written one after the other, each would be a packet that wakes the server. Where the system
    cannot hold them, and without a socket, this does nothing.
    """
    if _CORK is not None and sock is not None:
        with suppress(OSError):  # it was closed, or is no TCP socket
            sock.setsockopt(socket.IPPROTO_TCP, _CORK, is_held)


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections.after_fork_in_child()


_all: WeakSet[IdleConnections[Any]] = WeakSet()
_inherited: list[deque[Any]] = []
os.register_at_fork(after_in_child=_after_fork_in_child)


def place_of(address: str) -> tuple[str, int]:
    """Return host and port of an address to listen on, ``":9558"`` or ``"HOST:PORT"``; an empty host stands for all.

    Raises:
        ValueError: It is none.
    """
    host, separator, port = address.rpartition(":")
    if not (separator and port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError("write ':9558', or 'HOST:PORT'")
    host = host.strip("[]")
    try:
        host.encode("idna")  # as it is looked up
    except UnicodeError as exc:
        raise ValueError(f"{host} cannot be the name of a host: write ':9558', or 'HOST:PORT'") from exc
    return host, int(port)
