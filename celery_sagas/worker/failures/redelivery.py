"""Redelivery: a message that cannot be handled now is published again, confirmed, and this delivery is given up.

Celery's own ``retry()`` is not used: when its publish fails, the message is lost.
"""

import contextlib
import logging
import random
import time
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded

from celery_sagas.errors import PublishError, Retry, StoreError
from celery_sagas.worker.failures.brokers import longest_redelivery_s
from celery_sagas.worker.headers import REDELIVERIES, headers_of, read_redeliveries, read_retries
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher

logger = logging.getLogger("celery_sagas")

#: Seconds; well below every broker's consumer time-out.
_LONGEST_DELAY_S = 30.0
#: The part of the broker's own redelivery time: a waiting message must not be delivered twice.
_OF_REDELIVERY = 1 / 3
#: Seconds that a message is held that can be neither handled nor stored, before it is requeued; at first.
HELD_S = 3.0


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


def redeliver_if_it_helps(task: Any, publisher: object, error: StoreError) -> None:
    """Redeliver the running message later if there is one and it may succeed then; else return.

    Raises:
        Ignore: It was published again.
        Reject: The broker keeps this delivery.
    """
    if task.request.called_directly or task.request.is_eager or not isinstance(publisher, ConfirmedPublisher):
        return
    if error.retry in (Retry.AT_ONCE, Retry.LATER):
        redeliver(task, publisher, error)


def redeliver(task: Any, publisher: ConfirmedPublisher, reason: Exception) -> NoReturn:
    """Publish the running message again with the same id, headers and retry count, after a delay that is longer each time.

    Raises:
        Ignore: It was published; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    count = read_redeliveries(task.request)
    delay = _delay_s(count, longest_redelivery_s(task.app))
    logger.warning("%s[%s] is redelivered in %.1f s: %s", task.name, task.request.id, delay, reason)
    _publish_again(task, publisher, delay, read_retries(task.request), count + 1)
    raise Ignore()


def retry_missing(task: Any, publisher: ConfirmedPublisher, reason: Exception) -> NoReturn:
    """Publish the running message again because its instance does not exist yet, counted as a retry.

    Raises:
        Ignore: It was published; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    delay = float(task.default_retry_delay)
    logger.info("%s[%s] is retried in %.1f s: %s", task.name, task.request.id, delay, reason)
    _publish_again(task, publisher, delay, read_retries(task.request) + 1, read_redeliveries(task.request))
    raise Ignore()


def _publish_again(task: Any, publisher: ConfirmedPublisher, delay: float, retries: int, redeliveries: int) -> None:
    request = task.request
    headers = {**headers_of(request), REDELIVERIES: redeliveries}
    again = task.signature_from_request(request, countdown=delay, retries=retries, headers=headers)
    try:
        publisher.publish_signature(again)
    except PublishError as exc:
        logger.warning("%s[%s] could not be published again, the broker keeps it: %s", task.name, request.id, exc.reason)
        requeue(exc)


def held_s(failures: int, redelivery_s: float | None) -> float:
    """Return how long a main process holds a message that it can neither handle nor store, after some failures. Seconds."""
    return float(min(_longest_s(redelivery_s), HELD_S * 2.0 ** min(failures, 10)))


def _delay_s(count: int, redelivery_s: float | None) -> float:
    return float(min(_longest_s(redelivery_s), 2.0 ** min(count, 10))) * (0.5 + 0.5 * random.random())


def _longest_s(redelivery_s: float | None) -> float:
    return _LONGEST_DELAY_S if redelivery_s is None else min(_LONGEST_DELAY_S, redelivery_s * _OF_REDELIVERY)
