"""The connections of one engine: they stay open between operations, and one operation at a time has one to itself."""

import time
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.pool import PoolProxiedConnection

from celery_sagas.connections import IdleConnections


class SqlConnection:
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

    def close(self) -> None:
        """Close it, whatever it is in the middle of."""
        self.connection.close()


class Connections(IdleConnections[SqlConnection]):
    """Opens connections, and keeps those that are not in use.

    SQLAlchemy's own pool makes a proxy, a weak reference and events for each use, which takes longer than binding the statement's
    parameters.

    Args:
        engine: Opens connections, and keeps none.
        recycle_s: The age at which a connection is replaced, since proxies and firewalls end what has been open for long; less
            than 0: never.
    """

    def __init__(self, engine: Engine, recycle_s: float) -> None:
        super().__init__(SqlConnection.close)
        self._engine = engine
        self._recycle_s = recycle_s

    def check_out(self) -> SqlConnection | None:
        """Return the connection that was used last and is not too old."""
        oldest = time.monotonic() - self._recycle_s if self._recycle_s >= 0 else 0
        while (opened := super().check_out()) and opened.opened_at < oldest:
            opened.close()
        return opened

    def open(self) -> SqlConnection:
        """Return a new connection."""
        return SqlConnection(self._engine.raw_connection())
