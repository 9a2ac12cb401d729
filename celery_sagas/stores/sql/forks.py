"""Forking while other threads of the process use SQLite's files.

SQLite keeps in memory which locks the process holds. A child that inherits this believes to hold them too, although they are
the parent's alone, and the processes overwrite one another's commits, without any error. So no file may be open while a process
forks.
"""

from __future__ import annotations

import os
import threading
from threading import get_ident
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from celery_sagas.stores.sql.database import Database


class ForkGate:
    """A context in which operations run: a fork waits until all have ended, and those that begin meanwhile wait for the fork.

    A thread runs one operation at a time, and none that forks.
    """

    def __init__(self) -> None:
        self._databases: WeakSet[Database] = WeakSet()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Threads, not a number: an interruption that keeps one from leaving is made good by its next operation.
        self._operating: set[int] = set()
        self._forking: set[int] = set()

    def add(self, database: Database) -> None:
        """Close this database's connections before each fork."""
        self._databases.add(database)

    def __enter__(self) -> None:
        with self._lock:
            while self._forking:
                self._changed.wait()
            self._operating.add(get_ident())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._operating.discard(get_ident())
            if self._forking:
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Let no operation begin, wait for those that run, and close what they have left open."""
        with self._lock:
            self._forking.add(get_ident())
            while self._operating - {get_ident()}:
                self._changed.wait()
        for database in list(self._databases):
            database.connections.close_idle()

    def after_fork(self) -> None:
        """Let operations begin again."""
        with self._lock:
            self._forking.discard(get_ident())
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        """Forget the parent's threads, and the lock that one of them may have held."""
        self._begin_anew()


#: The one of this process.
FILES = ForkGate()
os.register_at_fork(before=FILES.before_fork, after_in_parent=FILES.after_fork, after_in_child=FILES.after_fork_in_child)
