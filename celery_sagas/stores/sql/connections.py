"""The connections of one engine: they stay open between operations, and one operation at a time has one to itself."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.pool import PoolProxiedConnection

from celery_sagas.pool import Pool


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
        kept, more = options["pool_size"], options["max_overflow"]
        self._kept = kept or math.inf
        self._limit = kept + more if kept and more >= 0 else math.inf
        self._pool: Pool[OpenConnection] = Pool(self._limit)
        self._is_closed = False

    @property
    def lent(self) -> int:
        """How many operations have a connection."""
        return self._pool.lent

    @property
    def idle(self) -> int:
        """How many open connections wait for an operation."""
        return self._pool.idle

    def borrow(self) -> OpenConnection:
        """Return a connection that nobody else has: the one used last, or a new one.

        Raises:
            sqlalchemy.exc.TimeoutError: All of them stayed in use.
        """
        timeout, recycle, asked_at = self._options["pool_timeout"], self._options["pool_recycle"], time.monotonic()
        while opened := self._pool.borrow(self._open, asked_at + timeout - time.monotonic()):
            if recycle < 0 or opened.opened_at >= asked_at - recycle:
                return opened
            self._close(opened)  # proxies and firewalls end what has been open for long
        raise NoConnection(f"each of the {self._limit} connections of this process stayed in use for {timeout} s")

    def _open(self) -> OpenConnection:
        return OpenConnection(self._engine.raw_connection())

    def give_back(self, opened: OpenConnection) -> None:
        """Keep a connection for the next operation."""
        if self._is_closed or self._pool.idle >= self._kept:
            self._close(opened)
            return
        self._pool.give_back(opened)
        if self._is_closed:  # meanwhile
            self.close_idle()

    def _close(self, opened: OpenConnection) -> None:
        try:
            opened.connection.close()
        finally:
            self._pool.forget(opened)

    def discard(self, opened: OpenConnection) -> None:
        """Close a connection: who knows what it would answer to the next statement."""
        try:
            opened.connection.invalidate()
        finally:
            self._pool.forget(opened)

    def close_idle(self) -> None:
        """Close the connections that nobody has."""
        for opened in self._pool.drain():
            opened.connection.close()

    def close(self) -> None:
        """Close the connections, those that are lent when they come back."""
        self._is_closed = True
        self.close_idle()
