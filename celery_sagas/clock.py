"""The wall clock from which due times are counted. A test in virtual time puts another one in its place."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

#: The end of all dates, in milliseconds since the epoch.
LAST_MS: Final = 253_402_300_799_000
#: In the place of this machine's clock: returns seconds since the epoch.
_other: Callable[[], float] | None = None


def time_s() -> float:
    """Return the time in seconds since the epoch."""
    return time.time() if _other is None else _other()


def now() -> datetime:
    """Return the time: aware, UTC."""
    return datetime.fromtimestamp(time_s(), UTC)


def utc_time(milliseconds: int) -> datetime:
    """Return the time at so many milliseconds since the epoch; aware, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@contextmanager
def replaced_by(read: Callable[[], float]) -> Iterator[None]:
    """Read another clock meanwhile, in this whole process.

    Args:
        read: Returns seconds since the epoch.
    """
    global _other
    before, _other = _other, read
    try:
        yield
    finally:
        _other = before
