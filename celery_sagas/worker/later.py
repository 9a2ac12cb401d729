"""Later: a message that cannot be handled now is published again, confirmed, and this delivery of it is given up.

Celery's own ``retry()`` is not used: when its publish fails, the message is lost.
"""

import logging
import random
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject

from celery_sagas.errors import PublishError
from celery_sagas.worker.headers import PUT_OFF, read_put_off
from celery_sagas.worker.publisher import ConfirmedPublisher

logger = logging.getLogger("celery_sagas")

#: Seconds; well below every broker's visibility or consumer time-out.
_LONGEST_DELAY_S = 30.0


def put_off(task: Any, publisher: ConfirmedPublisher, reason: Exception) -> NoReturn:
    """Publish the running message again: same id, headers and retry count, a little later each time.

    Raises:
        Ignore: It was published; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    count = read_put_off(task.request)
    delay = _delay(count)
    logger.warning("%s[%s] is put off by %.1f s: %s", task.name, task.request.id, delay, reason)
    _publish_again(task, publisher, delay, task.request.retries, count + 1)
    raise Ignore()


def retry_missing(task: Any, publisher: ConfirmedPublisher, reason: Exception) -> NoReturn:
    """Publish the running message again because its instance is not there yet, counted as a retry.

    Raises:
        Ignore: It was published; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    delay = float(task.default_retry_delay)
    logger.info("%s[%s] is retried in %.1f s: %s", task.name, task.request.id, delay, reason)
    _publish_again(task, publisher, delay, (task.request.retries or 0) + 1, read_put_off(task.request))
    raise Ignore()


def _publish_again(task: Any, publisher: ConfirmedPublisher, delay: float, retries: int, put_offs: int) -> None:
    request = task.request
    headers = {**(request.headers or {}), PUT_OFF: put_offs}
    again = task.signature_from_request(request, countdown=delay, retries=retries, headers=headers)
    try:
        publisher.publish_signature(again)
    except PublishError as exc:
        logger.warning("%s[%s] could not be published again, the broker keeps it: %s", task.name, request.id, exc.reason)
        raise Reject(exc.reason, requeue=True) from exc


def _delay(count: int) -> float:
    return float(min(_LONGEST_DELAY_S, 2.0 ** min(count, 10))) * (0.5 + 0.5 * random.random())
