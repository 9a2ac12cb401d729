"""Messages that a worker's main process can neither handle nor keep now: it holds them, longer each time, while others run."""

import logging
import time
from typing import Any

from celery_sagas.worker.failures.brokers import longest_redelivery_s
from celery_sagas.worker.failures.redelivery import held_s

logger = logging.getLogger("celery_sagas")

#: So many held messages count for no prefetched one.
_MOST_UNCOUNTED = 1_000


class Hold:
    """A pause in which a worker's main process does not ask the store, which has just failed, to keep a message.

    It would wait for the store at each of them, with everything else that it does.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._failures = 0
        self._ends_at_s = 0.0
        self._uncounted = 0

    @property
    def lasts(self) -> bool:
        """Whether the pause is not over."""
        return time.monotonic() < self._ends_at_s

    def begin(self) -> float:
        """Begin a pause that is longer than the last one, after a failure; return its seconds."""
        seconds = held_s(self._failures, longest_redelivery_s(self._consumer.app))
        self._failures += 1
        self._ends_at_s = time.monotonic() + seconds
        return seconds

    def end(self) -> None:
        """Have the next pause be a short one, after a success."""
        self._failures = 0

    def hold(self, message: Any) -> None:
        """Give a message back to the broker when the pause is over; it counts for no prefetched one, as if it had an eta.

        It would come again at once, before all others. Of more than a bounded number each counts, so that the others wait at the
        broker.
        """
        consumer, qos = self._consumer, self._consumer.qos  # the latter of the connection that the message has come by
        is_counted = self._uncounted >= _MOST_UNCOUNTED

        def requeue() -> None:
            message.reject_log_error(logger, consumer.connection_errors, requeue=True)
            if not is_counted:
                self._uncounted -= 1
                qos.decrement_eventually()

        def prefetch() -> None:
            if qos is consumer.qos and qos.prev != qos.value:
                qos.update()

        consumer.timer.call_after(self._ends_at_s - time.monotonic(), consumer.call_soon, (requeue,))
        if is_counted:
            return
        self._uncounted += 1
        qos.increment_eventually()
        if consumer.hub:  # Celery would look at it once something has come, and nothing might; without a hub it looks at once
            consumer.timer.call_after(0, prefetch)
