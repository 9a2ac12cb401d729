"""Notifications: when a message that requests an answer has failed permanently, the step in ``otherwise=`` receives a failure."""

import functools
import logging
from typing import Any

from celery import Celery
from celery.exceptions import WorkerLostError

from celery_sagas.core.ids import derived_id
from celery_sagas.core.names import storable
from celery_sagas.core.requests.answers import Failure, FailureKind
from celery_sagas.core.requests.requests import ReplyKind, ReturnAddress, Target
from celery_sagas.engine.dead_letters.dead_lettering import TEXT_CHARACTERS, text_of
from celery_sagas.errors import PublishError, TooManyDeliveries
from celery_sagas.worker.headers import (
    answer_headers,
    causation_headers,
    id_of,
    is_answer,
    read_retries,
    read_return_address_of,
    read_step_retries,
    task_of,
)
from celery_sagas.worker.publishing.publisher import PASSING_REFUSALS
from celery_sagas.worker.runtime import publisher_of, within
from celery_sagas.worker.sessions import session_of
from celery_sagas.worker.targets import signature_to

logger = logging.getLogger("celery_sagas")

#: Seconds that the main process waits for the broker: it consumes nothing meanwhile, and sends no heartbeat.
DEADLINE_S = 10.0
_NAME_CHARACTERS = 255


def notify_requester(
    app: Celery,
    request: Any,
    error: BaseException | str,
    kind: FailureKind = "error",
    *,
    dead_letter: str = "",
    may_be_answered: bool = False,
    is_retried: bool = False,
) -> bool:
    """Notify the requester of a message that it has failed, if a step was named for that; a repetition is harmless.

    It takes a bounded time. If the notification cannot be sent, the error is logged, and the deadline of the request remains.

    Args:
        app: The app.
        request: The request of the message's task.
        error: The exception, or a text if nothing was raised.
        kind: The kind of failure; unless it is an error, an answer may still come. For an answer it is always "unhandled".
        dead_letter: The id of the dead letter that the message has become: an answer may come once it is retried.
        may_be_answered: Whether an answer may come after this error, too.
        is_retried: Whether the caller tries again after an error of the broker.

    Returns:
        Whether a step was notified.

    Raises:
        PublishError: The broker is away, or accepts no messages, and the caller tries again.
    """
    address = read_return_address_of(request)
    if address is None or address.otherwise is None:
        return False
    try:
        _notify(app, request, address, address.otherwise, failure_of(request, error, kind, dead_letter), may_be_answered)
    except Exception as exc:  # whatever the error, the message has failed, and its worker continues
        if is_retried and _is_about_broker(exc):
            raise
        step = address.otherwise.task
        logger.warning("%s[%s] failed, and %s is not notified: %s", task_of(request), request.id, step, exc)
        return False
    return True


def _is_about_broker(error: Exception) -> bool:
    return isinstance(error, PublishError) and error.connection and not isinstance(error.__cause__, PASSING_REFUSALS)


def notify_requester_in_time(
    app: Celery, request: Any, error: BaseException | str, kind: FailureKind = "error", **given: Any
) -> bool:
    """Notify of a failure from a worker's main process, which must not be blocked; see ``notify_requester``."""
    address = read_return_address_of(request)
    if address is None or address.otherwise is None:
        return False
    try:
        return within(DEADLINE_S, functools.partial(notify_requester, app, request, error, kind, **given))
    except TimeoutError:
        task, step = task_of(request), address.otherwise.task
        logger.warning("%s[%s] failed, and perhaps %s is not notified: the broker is silent", task, request.id, step)
        return False


def notify_of_eager_failure(sender: Any = None, exception: BaseException | None = None, **_: object) -> None:
    """Notify of a failure in eager mode, where no worker does."""
    if sender is not None and exception is not None and sender.request.is_eager:
        notify_requester(sender.app, sender.request, exception)


def failure_of(request: Any, error: BaseException | str, kind: FailureKind = "error", dead_letter: str = "") -> Failure:
    """Return the failure of the task of a request.

    Args:
        request: The task's request.
        error: The exception, or a text if nothing was raised.
        kind: The kind of failure, if the error does not determine it.
        dead_letter: The id of the dead letter that its message has become.
    """
    if isinstance(error, WorkerLostError | TooManyDeliveries):
        kind = "lost"
    return Failure(
        kind="unhandled" if is_answer(request) else kind,
        task=storable(task_of(request), _NAME_CHARACTERS),
        task_id=storable(id_of(request), _NAME_CHARACTERS),
        error="" if isinstance(error, str) else storable(_class_of(error), _NAME_CHARACTERS),
        text=storable(error if isinstance(error, str) else text_of(error), TEXT_CHARACTERS),
        retries=read_retries(request) + read_step_retries(request),
        dead_letter=dead_letter,
    )


def _notify(app: Celery, request: Any, address: ReturnAddress, to: Target, failure: Failure, may_be_answered: bool) -> None:
    is_uncertain = may_be_answered or failure.dead_letter or failure.kind != "error"
    came = ReplyKind.UNCERTAIN if is_uncertain else ReplyKind.FAILURE
    headers = answer_headers(address.instance, address.request, came, failure.kind) | causation_headers(session_of(request))
    id = derived_id(address.request, ReplyKind.FAILURE)
    publisher_of(app).publish_signature(signature_to(app, to, failure.__json__(), id=id, headers=headers))
    logger.info("%s[%s] failed (%s), %s is notified", failure.task, failure.task_id, failure.kind, to.task)


def _class_of(error: BaseException) -> str:
    """Return the name of an exception's class; if Celery has replaced the exception to pickle it, that of the original."""
    return str(getattr(error, "exc_cls_name", None) or type(error).__name__)
