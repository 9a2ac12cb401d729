"""Messages that cannot be handled now: a task publishes its own again, confirmed, and a main process holds those it receives.

Celery's own ``retry()`` is not used: when its publish fails, the message is lost.
"""

import contextlib
import logging
import random
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeGuard

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_sagas.errors import PublishError, Retry, StepHeld, StoreError
from celery_sagas.observers import observers
from celery_sagas.worker.celery_internals import longest_redelivery_s
from celery_sagas.worker.headers import REDELIVERIES, headers_of, read_redeliveries, read_retries
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher

logger = logging.getLogger("celery_sagas")

#: Seconds; well below every broker's consumer time-out.
_LONGEST_DELAY_S = 30.0
#: The part of the broker's own redelivery time: a waiting message must not be delivered twice.
_OF_REDELIVERY = 1 / 3
#: Seconds that a message is held that can be neither handled nor stored, before it is requeued; at first.
HELD_S = 3.0
NO_HEADERS: Final[Mapping[str, Any]] = MappingProxyType({})
#: The number of held messages that do not count as prefetched.
_MOST_UNCOUNTED = 1_000


def redeliver_or_requeue(task: Any, publisher: object, reason: Exception) -> NoReturn:
    """Redeliver the running message later, or have the broker requeue it if that fails in any way.

    Raises:
        Ignore: It was published again.
        Reject: The broker keeps this delivery.
    """
    try:
        if isinstance(publisher, ConfirmedPublisher):
            redeliver(task, publisher, reason)
    except (Ignore, Reject):
        raise
    except Exception as exc:  # such as a message that cannot be encoded
        requeue(exc)
    requeue(reason)


def requeue(reason: Exception) -> NoReturn:
    """Have the broker requeue the running message, after a pause: it is redelivered at once, and would fail again.

    Raises:
        Reject: The broker keeps this delivery.
    """
    with contextlib.suppress(SoftTimeLimitExceeded):  # it ends the pause, and says nothing about the message
        time.sleep(HELD_S)
    raise Reject(repr(reason), requeue=True) from reason


def may_publish_again(publisher: object, task: Any) -> TypeGuard[ConfirmedPublisher]:
    """Return whether a task runs for a message from a broker, to which its publisher may publish it again."""
    return not (task.request.called_directly or task.request.is_eager) and isinstance(publisher, ConfirmedPublisher)


def redeliver_if_it_helps(task: Any, publisher: object, error: StoreError, headers: Mapping[str, Any] = NO_HEADERS) -> None:
    """Redeliver the running message later if there is one and it may succeed then; else return.

    Args:
        task: Its task.
        publisher: The publisher.
        error: The error with which it has failed.
        headers: Those that differ from its own, besides the count.

    Raises:
        Ignore: It was published again.
        Reject: The broker keeps this delivery.
    """
    if error.retry in (Retry.AT_ONCE, Retry.LATER) and may_publish_again(publisher, task):
        redeliver(task, publisher, error, headers)


def redeliver(task: Any, publisher: ConfirmedPublisher, reason: Exception, headers: Mapping[str, Any] = NO_HEADERS) -> NoReturn:
    """Publish the running message again with the same id, headers and retry count, after a delay that is longer each time.

    Raises:
        Ignore: It was published; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    count = read_redeliveries(task.request)
    delay = _delay_s(count, longest_redelivery_s(task.app))
    level = logging.DEBUG if isinstance(reason, StepHeld) else logging.WARNING  # the switchboard has logged that it is held
    logger.log(level, "%s[%s] is redelivered in %.1f s: %s", task.name, task.request.id, delay, reason)
    publish_again_or_requeue(task, publisher, delay, {**headers, REDELIVERIES: count + 1})
    for observer in observers:
        observer.redelivered(task.name, type(reason).__name__)
    raise Ignore()


def publish_again_or_requeue(task: Any, publisher: ConfirmedPublisher, delay: float, headers: Mapping[str, Any]) -> None:
    """Publish the running message again; see ``publish_again``.

    Raises:
        Reject: It could not be published; the broker keeps this delivery.
    """
    try:
        publish_again(task, publisher, delay, headers)
    except PublishError as exc:
        logger.warning("%s[%s] could not be published again, the broker keeps it: %s", task.name, task.request.id, exc.reason)
        requeue(exc)


def publish_again(task: Any, publisher: ConfirmedPublisher, delay: float, headers: Mapping[str, Any]) -> None:
    """Publish the running message again, with its id and all that belongs to it.

    Args:
        task: Its task.
        publisher: The publisher.
        delay: Seconds for which the worker that receives it keeps it waiting.
        headers: Those that differ from its own; ``None``: it has none by this name then.

    Raises:
        PublishError: It was not confirmed.
    """
    request = task.request
    kept = {name: value for name, value in headers_of(request).items() if name not in headers}
    headers = kept | {name: value for name, value in headers.items() if value is not None}
    retries = read_retries(request)
    publisher.publish_signature(task.signature_from_request(request, countdown=delay, retries=retries, headers=headers))


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


def held_s(failures: int, redelivery_s: float | None) -> float:
    """Return how long a main process holds a message that it can neither handle nor store, after some failures. Seconds."""
    return float(min(_longest_s(redelivery_s), HELD_S * 2.0 ** min(failures, 10)))


def _delay_s(count: int, redelivery_s: float | None) -> float:
    return float(min(_longest_s(redelivery_s), 2.0 ** min(count, 10))) * (0.5 + 0.5 * random.random())


def _longest_s(redelivery_s: float | None) -> float:
    return below_redelivery_s(_LONGEST_DELAY_S, redelivery_s)


def below_redelivery_s(delay_s: float, redelivery_s: float | None) -> float:
    """Return a delay, shortened so that the broker does not redeliver the message while it waits. Seconds."""
    return delay_s if redelivery_s is None else min(delay_s, redelivery_s * _OF_REDELIVERY)
