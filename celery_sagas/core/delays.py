"""Delays, and the pauses between the tries of something that fails."""

import math
from datetime import timedelta
from typing import Any, NamedTuple

Delay = timedelta | float

#: The longest pause, in seconds: 100 years.
_LONGEST_S = 100 * 365 * 86_400.0
#: The most tries after the first one.
_MOST_TIMES = 1_000


def seconds_of(name: str, delay: Any) -> float:
    """Return a delay in seconds.

    Args:
        name: The argument's name, for the error.
        delay: A ``timedelta`` or seconds.

    Raises:
        TypeError: It is neither.
    """
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise TypeError(f"{name}= takes a timedelta or seconds, not {type(delay).__name__}")
    return delay.total_seconds() if isinstance(delay, timedelta) else float(delay)


class Backoff(NamedTuple):
    """How often something that fails is tried again, and after which pauses."""

    times: int  #: how often at most, after the first time: 0 to 1,000
    first: Delay = 10.0  #: the first pause: a ``timedelta`` or seconds
    most: Delay = 3600.0  #: the longest pause
    factor: float = 2.0  #: how many times as long as the one before each pause is

    def pause_s(self, number: int) -> float:
        """Return the pause before a retry in seconds.

        Args:
            number: Of the retry, from 1.
        """
        first, most = seconds_of("first", self.first), seconds_of("most", self.most)
        try:
            return min(first * self.factor ** (number - 1), most)
        except OverflowError:
            return most


def checked_backoff(name: str, backoff: Any) -> Backoff:
    """Return a backoff, its pauses as seconds.

    Args:
        name: The argument's name, for the error.
        backoff: The one that was given.

    Raises:
        TypeError: It is not a ``Backoff``, or a part of it has another type.
        ValueError: A part of it is out of its bounds.
    """
    if not isinstance(backoff, Backoff):
        raise TypeError(f"{name}= takes a Backoff(times, first, most), not {type(backoff).__name__}")
    if isinstance(backoff.times, bool) or not isinstance(backoff.times, int):
        raise TypeError(f"{name}= takes a Backoff with a number of times, not {backoff.times!r}")
    first, most = (seconds_of(part, getattr(backoff, part)) for part in ("first", "most"))
    factor = backoff.factor
    if isinstance(factor, bool) or not isinstance(factor, int | float):
        raise TypeError(f"{name}= takes a Backoff whose factor is a number, not {type(factor).__name__}")
    if not 0 <= backoff.times <= _MOST_TIMES:
        raise ValueError(f"{name}={backoff!r} has no number of times from 0 to {_MOST_TIMES:,}")
    if not (0 < first <= _LONGEST_S and first <= most <= _LONGEST_S and 1 <= factor < math.inf):
        raise ValueError(f"{name}={backoff!r} needs 0 < first <= most, and a factor of at least 1")
    return Backoff(backoff.times, first, most, float(factor))
