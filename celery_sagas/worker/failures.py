"""What a worker says when a message that asks for an answer has failed for good: a failure, sent to the step that was named."""

import functools
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from celery import Celery
from celery.exceptions import WorkerLostError

from celery_sagas.core.answers import Failure, FailureKind
from celery_sagas.core.conversation import Came, ReturnAddress, Target
from celery_sagas.core.ids import derived_id
from celery_sagas.core.registry import registry
from celery_sagas.core.text import storable
from celery_sagas.engine.burial import TEXT_CHARACTERS, text_of
from celery_sagas.errors import PublishError, TooManyDeliveries
from celery_sagas.worker.deadline import within
from celery_sagas.worker.headers import (
    answer_headers,
    causation_headers,
    id_of,
    is_answer,
    read_retries,
    read_return_address_of,
    task_of,
)
from celery_sagas.worker.publisher import PASSING_REFUSALS, ConfirmedPublisher, EagerPublisher
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import session_of
from celery_sagas.worker.targets import signature_to

logger = logging.getLogger("celery_sagas")

#: Seconds that the main process waits for the broker: nothing is consumed meanwhile, and no heartbeat is sent.
DEADLINE_S = 10.0
_NAME_CHARACTERS = 255


def report(
    app: Celery,
    request: Any,
    error: BaseException | str,
    kind: FailureKind = "error",
    *,
    letter: str = "",
    may_be_answered: bool = False,
    may_be_repeated: bool = False,
) -> bool:
    """Tell whoever waits for the answer to a message that it has failed, if a step was named for that; twice is as good as once.

    It takes a bounded time. What cannot be sent is logged, and the deadline of the request remains.

    Args:
        app: The app.
        request: Of the message's task.
        error: What was raised, or a text if nothing was.
        kind: What happened; but for an error, an answer may come all the same. Of an answer it is always "unhandled".
        letter: The id of the dead letter that the message has become.
        may_be_answered: Whether one may come after this error, too.
        may_be_repeated: Whether somebody will tell again if it raises, which it never does otherwise.

    Returns:
        Whether a step was told.

    Raises:
        PublishError: The broker is away, or takes no messages.
    """
    address = read_return_address_of(request)
    if address is None or address.otherwise is None:
        return False
    failure = failure_of(request, error, kind, letter)
    came = Came.DOUBT if may_be_answered or failure.kind != "error" else Came.FAILURE
    try:
        _send(app, request, address, address.otherwise, failure, came)
    except Exception as exc:  # whatever it is, the message has failed, and its worker goes on
        if may_be_repeated and _may_pass(exc):
            raise
        logger.warning("%s[%s] failed, and %s is not told: %s", failure.task, failure.task_id, address.otherwise.task, exc)
        return False
    logger.info("%s[%s] failed (%s), %s is told", failure.task, failure.task_id, failure.kind, address.otherwise.task)
    return True


def _may_pass(error: Exception) -> bool:
    return isinstance(error, PublishError) and error.connection and not isinstance(error.__cause__, PASSING_REFUSALS)


def report_in_time(
    app: Celery,
    request: Any,
    error: BaseException | str,
    kind: FailureKind = "error",
    *,
    letter: str = "",
    may_be_answered: bool = False,
) -> bool:
    """Tell of a failure from a worker's main process, which nobody may hold up; see ``report``."""
    address = read_return_address_of(request)
    if address is None or address.otherwise is None:
        return False
    try:
        return within(
            DEADLINE_S, functools.partial(report, app, request, error, kind, letter=letter, may_be_answered=may_be_answered)
        )
    except TimeoutError:
        step = address.otherwise.task
        logger.warning(
            "%s[%s] failed, and perhaps %s is not told: the broker does not answer", task_of(request), request.id, step
        )
        return False


def report_eager_failure(sender: Any = None, exception: BaseException | None = None, **_: object) -> None:
    """Tell of a failure in eager mode, where no worker does."""
    if sender is not None and exception is not None and sender.request.is_eager:
        report(sender.app, sender.request, exception)


def failure_of(request: Any, error: BaseException | str, kind: FailureKind = "error", letter: str = "") -> Failure:
    """Return the failure of the task of a request.

    Args:
        request: The task's.
        error: What was raised, or a text if nothing was.
        kind: What happened, as far as the error does not say it.
        letter: The id of the dead letter that its message has become.
    """
    if isinstance(error, WorkerLostError | TooManyDeliveries):
        kind = "lost"
    return Failure(
        kind="unhandled" if is_answer(request) else kind,
        task=storable(task_of(request), _NAME_CHARACTERS),
        task_id=storable(id_of(request), _NAME_CHARACTERS),
        error="" if isinstance(error, str) else storable(_class_of(error), _NAME_CHARACTERS),
        text=storable(error if isinstance(error, str) else text_of(error), TEXT_CHARACTERS),
        retries=read_retries(request),
        dead_letter=letter,
    )


def _send(app: Celery, request: Any, address: ReturnAddress, to: Target, failure: Failure, came: Came) -> None:
    headers = answer_headers(address.instance, address.request, came) | causation_headers(session_of(request))
    id = derived_id(address.request, Came.FAILURE)
    with _publisher(app) as publisher:
        publisher.publish_signature(signature_to(app, to, failure.__json__(), id=id, headers=headers))


@contextmanager
def _publisher(app: Celery) -> Iterator[ConfirmedPublisher | EagerPublisher]:
    """Lend what publishes here; a worker without sagas need not open a backend for that."""
    if registry:
        yield runtime_of(app).publisher
        return
    with closing(ConfirmedPublisher(app)) as publisher:
        yield publisher


def _class_of(error: BaseException) -> str:
    """Return the name of an exception's class; where Celery puts something else in its place to pickle it, of what it was."""
    return str(getattr(error, "exc_cls_name", None) or type(error).__name__)
