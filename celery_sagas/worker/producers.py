"""Producers over connections of their own, each lent to one thread, or greenlet, at a time."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import LimitExceeded

from celery_sagas.pool import Pool


class Producers:
    """A pool without locks, unlike kombu's.

    Args:
        make: Makes a producer, whose connection need not be established yet.
        limit: How many connections there may be; none or 0: nothing is kept.
        patience_s: How long one is waited for. Seconds.
    """

    def __init__(self, make: Callable[[], Any], limit: int | None, patience_s: float) -> None:
        self._make = make
        self._limit = limit or 0
        self._patience_s = patience_s
        self._pool: Pool[Any] = Pool(limit or math.inf)

    @contextmanager
    def lent(self, policy: dict[str, Any]) -> Iterator[Any]:
        """Lend a producer that is connected; one whose use was interrupted, or has failed, loses its connection.

        Args:
            policy: How often it is tried to connect, in kombu's terms.

        Raises:
            LimitExceeded: None has come back in time.
        """
        producer = self._pool.borrow(self._make, self._patience_s)
        if producer is None:
            raise LimitExceeded(f"all {self._limit} connections are in use: raise broker_pool_limit")
        is_sound = False
        try:
            producer.connection.ensure_connection(**policy)
            yield producer
            is_sound = self._limit > 0
        finally:
            if not (is_sound and self._pool.give_back(producer)):
                self._end(producer)

    def _end(self, producer: Any) -> None:
        producer.connection.collect()
        self._pool.forget(producer)

    def close(self) -> None:
        """Close the connections, also those that are lent."""
        for producer in self._pool:
            self._end(producer)
