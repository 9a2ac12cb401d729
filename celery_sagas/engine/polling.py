"""Looking again and again, with pauses in between: one rule, whoever sleeps meanwhile, a thread or a coroutine."""

import time
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

#: Seconds between two looks: short pauses at first, since many changes come at once, then half as long again each time.
_FIRST_PAUSE_S, _LONGER, _LONGEST_PAUSE_S = 0.005, 1.5, 0.5

T = TypeVar("T")
#: Looks each time that it is continued, yields how many seconds to pause until the next look, and returns what was found.
Polling: TypeAlias = Generator[float, None, T]


class Found(NamedTuple, Generic[T]):
    """The result of a ``Polling``."""

    value: T


def poll(look: Callable[[], T | None], timeout_s: float, over: Callable[[], Exception]) -> Polling[T]:
    """Look until there is a result that is not ``None``, or the time is over.

    Args:
        look: Looks once.
        timeout_s: Seconds; with 0 it looks once.
        over: Returns the error to raise when the time is over.
    """
    began, paused_s = time.monotonic(), 0.0
    for pause_s in _pauses():
        result = look()
        if result is not None:
            return result
        # in a test in virtual time the pauses alone tell how much of it has passed
        left_s = timeout_s - max(time.monotonic() - began, paused_s)
        if left_s <= 0:
            break
        yield min(pause_s, left_s)
        paused_s += pause_s
    raise over()


def proceed(polling: Polling[T]) -> float | Found[T]:
    """Look once; return the seconds until the next look, or what was found."""
    try:
        return next(polling)
    except StopIteration as end:
        return Found(end.value)


def finish(polling: Polling[T], pause: Callable[[float], object] | None = None) -> T:
    """Look until there is a result, and return it.

    Args:
        polling: What looks.
        pause: Lets time pass, given the seconds; without it, this thread sleeps.
    """
    while isinstance(step := proceed(polling), float):
        (pause or time.sleep)(step)
    return step.value


def seconds_to_wait(timeout: Any) -> float:
    """Return the seconds that a timeout stands for.

    Raises:
        TypeError: It is of another type.
        ValueError: It is negative.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, timedelta | int | float):
        raise TypeError(f"timeout= takes a timedelta or seconds, not {type(timeout).__name__}")
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not seconds >= 0:  # nor is it one of NaN
        raise ValueError(f"timeout={timeout!r} is no time to wait")
    return seconds


def _pauses() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(_LONGER * pause_s, _LONGEST_PAUSE_S)
