"""Forks of a process: what they wait for, and what a child must not touch."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Protocol
from weakref import WeakSet


class Process:
    """The process in which something was made, or a child of it that has inherited that."""

    def __init__(self) -> None:
        self._id = os.getpid()

    @property
    def is_child(self) -> bool:
        """Return whether this is a child: threads of the parent may hold its locks, and sockets are shared with the parent."""
        return self._id != os.getpid()


class HasConnections(Protocol):
    """Something that keeps connections open."""

    def close_idle(self) -> None:
        """Close the idle connections."""


class ForkGate:
    """A context manager for pieces of work: a fork waits until all have ended, and new ones wait for the fork.

    A thread does one piece at a time, and a piece must not fork.

    Args:
        timeout_s: Seconds that a fork waits at most; ``None``: until all have ended.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = timeout_s
        self._closed: WeakSet[HasConnections] = WeakSet()
        self.reset()

    def reset(self) -> None:
        """Forget the parent's threads, and the lock that one of them may have held."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        # Threads, not a number: a thread that was interrupted while it left is set right by its next piece of work.
        self._working: set[int] = set()
        self._holding: set[int] = set()
        self._forking: set[int] = set()

    def close_before_forks(self, connections: HasConnections) -> None:
        """Close idle connections before each fork, so that none is open while the process forks."""
        self._closed.add(connections)

    def __enter__(self) -> None:
        with self._lock:
            while self._forking and get_ident() not in self._holding:  # whose work the fork waits for
                self._changed.wait()
            self._working.add(get_ident())

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._working.discard(get_ident())
            if self._forking:
                self._changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Do a piece of work in which others of the same thread may be done."""
        with self:
            self._holding.add(get_ident())
        try:
            yield
        finally:
            with self._lock:
                self._holding.discard(get_ident())
                self._changed.notify_all()

    def before_fork(self) -> None:
        """Let no work begin, and wait for what is under way."""
        with self._lock:
            self._forking.add(get_ident())
            self._changed.wait_for(lambda: self._working | self._holding <= {get_ident()}, self._timeout_s)
        for connections in list(self._closed):
            connections.close_idle()

    def after_fork(self) -> None:
        """Let work begin again."""
        with self._lock:
            self._forking.discard(get_ident())
            self._changed.notify_all()


#: Work of a worker's main process. Celery and kombu have locks that all of a process shares (one for each cached property, one
#: for each signal): one that a thread holds at a fork stays locked in the child. Work that takes longer waits for a server, and
#: holds none of them meanwhile.
WORK = ForkGate(timeout_s=0.5)
#: Operations on SQLite's files. SQLite keeps in memory which locks the process holds. A child inherits this record and acts as
#: if it held them too, although only the parent does; the processes then overwrite one another's commits without an error. So no
#: file may be open while a process forks.
FILES = ForkGate()

_GATES = (WORK, FILES)  # in this order: work may be waiting for a file


def _before() -> None:
    for gate in _GATES:
        gate.before_fork()


def _after_in_parent() -> None:
    for gate in _GATES:
        gate.after_fork()


def _after_in_child() -> None:
    for gate in _GATES:
        gate.reset()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
