"""Answers of a server that serves nobody for now: they count as a lost connection, upon which Celery connects again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError

#: Another program's script runs, or nothing can be written: a replica, or a full disk. ``LOADING`` redis-py raises by itself.
_AWAY: Final = re.compile(r"\b(BUSY|MASTERDOWN|MISCONF|NOREPLICAS|READONLY)\b")


def is_away(error: ResponseError) -> bool:
    """Whether a server says that it serves nobody, or writes nothing, for now."""
    # redis-py cuts the code off an answer for which it has a class
    return isinstance(error, (ReadOnlyError, MasterDownError)) or bool(_AWAY.search(str(error)))


@contextmanager
def away_is_lost() -> Iterator[None]:
    """Raise redis-py's ``ConnectionError`` where the server answers that it is away."""
    try:
        yield
    except ResponseError as exc:
        if is_away(exc):
            raise ConnectionLost(f"The Redis broker serves nobody for now: {exc}") from exc
        raise
