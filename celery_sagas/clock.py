"""The wall clock from which due times are counted. A test in virtual time puts another one in its place."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

#: Returns seconds since the epoch.
_read: Callable[[], float] = time.time


def time_s() -> float:
    """Return the time in seconds since the epoch."""
    return _read()


def now() -> datetime:
    """Return the time: aware, UTC."""
    return datetime.fromtimestamp(_read(), UTC)


@contextmanager
def replaced_by(read: Callable[[], float]) -> Iterator[None]:
    """Read another clock meanwhile, in this whole process.

    Args:
        read: Returns seconds since the epoch.
    """
    global _read
    before, _read = _read, read
    try:
        yield
    finally:
        _read = before
