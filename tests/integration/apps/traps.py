"""Traps before and after the commands of a port: whoever comes there may be killed."""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, TypeVar

from deployed import first_time, note

T = TypeVar("T")


def set_trap(port: Any, method: str, stage: str, whose: Callable[..., T], come_to: Callable[[T, str], object]) -> None:
    """Have it told when a method is about to run, and when it has: for whom, and ``before …`` or ``after …`` the stage."""
    original = getattr(port, method)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        theirs = whose(*arguments)
        come_to(theirs, f"before {stage}")
        answer = original(*arguments, **options)
        if answer != []:  # a claim of nothing is no point of interest
            come_to(theirs, f"after {stage}")
        return answer

    setattr(port, method, wrapped)


def die(point: str, first: Callable[[], object] | None = None) -> None:
    """End this process as the kernel would, after something else, the first time that anybody comes here."""
    if first_time(point):
        if first:
            first()
        note("killed", f"{os.getpid()} {point}")
        os.kill(os.getpid(), signal.SIGKILL)
