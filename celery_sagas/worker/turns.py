"""Turns: what eager mode would run at once, and inside of what asks for it, runs when that has ended."""

import threading
from collections import deque
from collections.abc import Callable


class _Turns(threading.local):
    """What waits in this thread (or greenlet); ``None`` while nothing runs."""

    waiting: deque[Callable[[], None]] | None = None


_turns = _Turns()


def in_turn(work: Callable[[], None]) -> None:
    """Do work now, and then whatever it asks for; or leave it to whoever is doing that.

    So many flushes of a group come in the order of its items, and not each inside of the one before. An error passes, and what
    still waits is dropped.
    """
    if _turns.waiting is not None:
        _turns.waiting.append(work)
        return
    _turns.waiting = deque([work])
    try:
        while _turns.waiting:
            _turns.waiting.popleft()()
    finally:
        _turns.waiting = None
