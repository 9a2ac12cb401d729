"""The connections of one engine: they stay open between operations, and one operation at a time has one to itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.pool import PoolProxiedConnection


class OpenConnection:
    """A connection of the driver, and the one cursor on which all of its statements run."""

    def __init__(self, connection: PoolProxiedConnection) -> None:
        self.connection = connection
        self.cursor: DBAPICursor = connection.cursor()
        self.opened_at = time.monotonic()
        self.has_worked = False  #: whether an operation has succeeded on it

    @property
    def driver_connection(self) -> Any:
        """The driver's own object."""
        return self.connection.dbapi_connection


class Connections:
    """Lends connections.

    SQLAlchemy's own pool makes a proxy, a weak reference and events for each loan, which takes longer than binding the
    statement's parameters.

    Args:
        engine: Opens connections, and keeps none.
        options: ``pool_size``, ``max_overflow``, ``pool_timeout`` and ``pool_recycle``, which mean what they mean to
            SQLAlchemy's pool.
    """

    def __init__(self, engine: Engine, options: Mapping[str, Any]) -> None:
        self._engine = engine
        self._options = options
        self._most = int(options["pool_size"] + options["max_overflow"])
        self._free = threading.Semaphore(self._most)
        self._idle: list[OpenConnection] = []
        self._is_closed = False

    @property
    def lent(self) -> int:
        """How many operations have a connection."""
        return self._most - self._free._value

    @property
    def idle(self) -> int:
        """How many open connections wait for an operation."""
        return len(self._idle)

    def borrow(self) -> OpenConnection:
        """Return a connection that nobody else has: the one used last, or a new one.

        Raises:
            sqlalchemy.exc.TimeoutError: All of them stayed in use.
        """
        timeout = self._options["pool_timeout"]
        if not self._free.acquire(timeout=timeout):
            raise NoConnection(f"each of the {self._most} connections of this process stayed in use for {timeout} s")
        opened = None
        try:
            opened = self._wake() or OpenConnection(self._engine.raw_connection())
        finally:
            if opened is None:
                self._free.release()
        return opened

    def give_back(self, opened: OpenConnection) -> None:
        """Keep a connection for the next operation."""
        if self._is_closed or len(self._idle) >= self._options["pool_size"]:
            opened.connection.close()
        else:
            self._idle.append(opened)
        self._free.release()

    def discard(self, opened: OpenConnection) -> None:
        """Close a connection: who knows what it would answer to the next statement."""
        try:
            opened.connection.invalidate()
        finally:
            self._free.release()

    def close_idle(self) -> None:
        """Close the connections that nobody has."""
        while opened := self._pop():
            opened.connection.close()

    def close(self) -> None:
        """Close the connections, those that are lent when they come back."""
        self._is_closed = True
        self.close_idle()

    def _wake(self) -> OpenConnection | None:
        """Take a connection that is not too old: proxies and firewalls end what has been open for long."""
        while opened := self._pop():
            if time.monotonic() - opened.opened_at < self._options["pool_recycle"]:
                return opened
            opened.connection.close()
        return None

    def _pop(self) -> OpenConnection | None:
        try:
            return self._idle.pop()
        except IndexError:  # another thread may have taken the last one
            return None
