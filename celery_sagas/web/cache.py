"""What several visitors are shown is read once."""

import time
from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar, cast

T = TypeVar("T")


class Cache:
    """Keeps values for a while; while one is read, others wait for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._locks: dict[str, Lock] = {}
        self._kept: dict[str, tuple[float, Any]] = {}

    def forget(self, name: str) -> None:
        """Have a value read again, as it was changed."""
        self._kept.pop(name, None)

    def get(self, name: str, for_s: float, read: Callable[[], T]) -> T:
        """Return a value that was read at most so many seconds ago; the names are few, and chosen by the program."""
        with self._lock:
            lock = self._locks.setdefault(name, Lock())
        with lock:
            until, value = self._kept.get(name, (0.0, None))
            if until < time.monotonic():
                value = read()
                self._kept[name] = time.monotonic() + for_s, value
            return cast(T, value)
