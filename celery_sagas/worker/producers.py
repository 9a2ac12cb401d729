"""Producers over connections of their own, each lent to one thread, or greenlet, at a time."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from weakref import WeakSet

from kombu import Producer
from kombu.exceptions import LimitExceeded

#: Between two looks for one that has come back. Seconds.
_PAUSE_S: Final = 0.01


class Producers:
    """A pool without locks: a time limit that strikes in the middle of kombu's may leave that locked for ever, for every thread.

    Args:
        connect: Makes a connection, which need not be established yet.
        limit: How many connections there may be; none or 0: nothing is kept.
        patience_s: How long one is waited for. Seconds.
    """

    def __init__(self, connect: Callable[[], Any], limit: int | None, patience_s: float) -> None:
        self._connect = connect
        self._limit = limit or 0
        self._patience_s = patience_s
        self._idle: deque[Any] = deque()
        #: Idle and lent ones. Not a number, which would miss the end of one that is lost where a time limit strikes.
        self._all: WeakSet[Any] = WeakSet()

    @contextmanager
    def lent(self, policy: dict[str, Any]) -> Iterator[Any]:
        """Lend a producer that is connected; one whose use was interrupted, or has failed, loses its connection.

        Args:
            policy: How often it is tried to connect, in kombu's terms.

        Raises:
            LimitExceeded: None has come back in time.
        """
        producer, is_sound = self._borrow(), False
        try:
            producer.connection.ensure_connection(**policy)
            yield producer
            is_sound = self._limit > 0
        finally:
            if is_sound:
                self._idle.append(producer)
            else:
                self._end(producer)

    def _borrow(self) -> Any:
        give_up = time.monotonic() + self._patience_s
        while True:
            try:
                return self._idle.pop()
            except IndexError:
                producer = Producer(self._connect())
            self._all.add(producer)
            if not 0 < self._limit < len(self._all):
                return producer
            self._all.discard(producer)
            if time.monotonic() > give_up:
                raise LimitExceeded(f"all {self._limit} connections are in use: raise broker_pool_limit")
            time.sleep(_PAUSE_S)

    def _end(self, producer: Any) -> None:
        self._all.discard(producer)
        producer.connection.collect()

    def close(self) -> None:
        """Close the connections, also those that are lent."""
        for producer in list(self._all):
            self._end(producer)
        self._idle.clear()
