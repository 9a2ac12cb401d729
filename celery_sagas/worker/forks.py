"""A gate between what a thread does and the forks of its process.

A child inherits locks as they are. Celery and kombu have locks that all of a process shares (one for each cached property, one
for each signal): whichever a thread of the parent holds at that moment is held for ever in the child.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds that a fork waits at most. Whoever works for longer waits for a server, and holds none of these locks meanwhile.
_PATIENCE_S = 0.5
_POLL_S = 0.001


class ForkGate:
    """Lets a process fork between two pieces of another thread's work, and not within one."""

    def __init__(self) -> None:
        self.after_in_child()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Bracket a piece of work; it does not begin while a fork waits for its predecessor."""
        while self._forking:
            time.sleep(_POLL_S)
        with self._working:
            yield

    def before_fork(self) -> None:
        """Wait until no piece of work is under way, for a bounded time."""
        self._forking += 1
        if self._working.acquire(timeout=_PATIENCE_S):
            self._held.add(threading.get_ident())

    def after_in_parent(self) -> None:
        """Let the work go on."""
        self._forking -= 1
        if threading.get_ident() in self._held:
            self._held.discard(threading.get_ident())
            self._working.release()

    def after_in_child(self) -> None:
        """Begin anew: the other threads are not here."""
        self._working = threading.Lock()
        self._forking = 0  #: threads that are forking, or about to
        self._held: set[int] = set()  #: those of them that no work is under way for


#: One for a process.
gate = ForkGate()
os.register_at_fork(
    before=lambda: gate.before_fork(),
    after_in_parent=lambda: gate.after_in_parent(),
    after_in_child=lambda: gate.after_in_child(),
)
