"""Messages that a main process can neither handle nor store now: it holds them, longer each time, while others run."""

import logging
import time
from typing import Any

from celery_sagas.worker.failures.brokers import longest_redelivery_s
from celery_sagas.worker.failures.redelivery import held_s

logger = logging.getLogger("celery_sagas")

#: The number of held messages that do not count as prefetched.
_MOST_UNCOUNTED = 1_000


class Hold:
    """A pause in which a worker's main process does not access a store that has just failed.

    Otherwise each message would block the process, with all its other work, until the store fails again.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._failures = 0
        self._ends_at_s = 0.0
        self._uncounted = 0

    @property
    def lasts(self) -> bool:
        """Return whether the pause is not over."""
        return time.monotonic() < self._ends_at_s

    def begin(self) -> float:
        """Begin a pause after a failure, longer than the last one; return its seconds."""
        seconds = held_s(self._failures, longest_redelivery_s(self._consumer.app))
        self._failures += 1
        self._ends_at_s = time.monotonic() + seconds
        return seconds

    def end(self) -> None:
        """Make the next pause a short one again, after a success."""
        self._failures = 0

    def hold(self, message: Any) -> None:
        """Requeue a message when the pause is over; until then it does not count as prefetched, as if it had an eta.

        If requeued now, it would be redelivered at once, before all others. Beyond a bounded number each held message counts, so
        that the others wait at the broker.
        """
        consumer, qos = self._consumer, self._consumer.qos  # the qos of the connection through which the message has come
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
        if consumer.hub:  # Celery would check it only after the next event, which may never come; without a hub it checks at once
            consumer.timer.call_after(0, prefetch)
