"""Waiting for a condition with a deadline: no test sleeps for an outcome."""

import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds that anything may take at most: generous, since it is only waited for by a test that is about to fail.
DEADLINE_S = 60.0
#: Seconds that a program may take at most which a test runs in a process of its own.
PROGRAM_S = 240.0
#: Seconds between two looks: few at first, since much comes at once, and twice as many each time.
_SHORTEST_S, _LONGEST_S = 0.005, 0.1

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str | Callable[[], str], deadline_s: float = DEADLINE_S) -> T:
    """Return the first true value of a condition; fail with ``what`` if there is none within the deadline."""
    deadline, pause_s = time.monotonic() + deadline_s, _SHORTEST_S
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)
