"""Retries: a message whose step has raised runs again after a pause, as ``saga_step_retries`` says; Celery's own come first.

The message is published again, with the number of its retry in a header. A worker keeps it waiting for minutes at most, and not
until its broker would redeliver it: of a longer pause the message carries the rest, and is published again when it arrives.
"""

import logging
from types import TracebackType
from typing import Any, NamedTuple

from celery import Task
from celery.exceptions import Ignore, Retry, SoftTimeLimitExceeded

from celery_sagas.core.delays import Backoff
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import TEXT_CHARACTERS, text_of
from celery_sagas.engine.instance import shown_property
from celery_sagas.errors import PublishError, recurs
from celery_sagas.stores.records import KEY
from celery_sagas.worker.celery_internals import longest_redelivery_s
from celery_sagas.worker.failures.dead_letters import lookup_of
from celery_sagas.worker.failures.redelivery import (
    below_redelivery_s,
    may_publish_again,
    publish_again,
    publish_again_or_requeue,
    requeue,
)
from celery_sagas.worker.headers import PAUSE_LEFT, STEP_RETRIES, read_pause_left, read_step_retries
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher
from celery_sagas.worker.runtime import Runtime

logger = logging.getLogger("celery_sagas")

#: Marks the request of a task whose own retries, by ``retry()`` or ``autoretry_for``, are used up; a header may have this name,
#: but not this value.
_USED_UP, _IS_USED_UP = "_celery_sagas_used_up", object()

_FAILED = "%s[%s] of %s has failed (try %d of %d), and runs again in %g s: %s"


class NextRetry(NamedTuple):
    """A retry of a message."""

    number: int  #: from 1
    times: int  #: how many there are
    pause_s: float


def mark_used_up(request: Any) -> None:
    """Note that a task has used up Celery's retries: no others follow them."""
    request.__dict__[_USED_UP] = _IS_USED_UP


def next_retry(task: Any, request: Any, backoff: Backoff, error: BaseException) -> NextRetry | None:
    """Return the next retry of a message; ``None`` if there is none.

    Args:
        task: Its step's task.
        request: The task's request.
        backoff: The retries of the app's steps.
        error: The error with which the message has failed.
    """
    made, times = read_step_retries(request), _times_of(task, backoff)
    is_final = recurs(error) or isinstance(error, tuple(task.dont_autoretry_for))
    if made >= times or is_final or request.__dict__.get(_USED_UP) is _IS_USED_UP:
        return None
    return NextRetry(made + 1, times, backoff.pause_s(made + 1))


def _times_of(task: Any, backoff: Backoff) -> int:
    """Return how often a step's messages are retried: no more often than its own ``max_retries`` says, if it has that."""
    for part in (task, *type(task).__mro__):
        if part is not Task and "max_retries" in vars(part):
            most = vars(part)["max_retries"]
            return backoff.times if most is None else min(most, backoff.times)
    return backoff.times


def retry_later(task: Any, runtime: Runtime, error: Exception, traceback: TracebackType | None) -> None:
    """Publish the running message again, if it has failed with an error that may pass; else return.

    Args:
        task: Its step's task.
        runtime: The app's runtime.
        error: The error.
        traceback: The part of its traceback that is of interest to the user.

    Raises:
        Retry: It was published again; this delivery is acknowledged.
        Reject: It could not be published now; the broker keeps this delivery.
    """
    retry = next_retry(task, task.request, runtime.settings.step_retries, error)
    if retry is not None and _publish(task, runtime.publisher, retry, error):
        pause_s: Any = retry.pause_s
        raise Retry(exc=error.with_traceback(traceback), when=pause_s) from error


def _publish(task: Any, publisher: object, retry: NextRetry, error: Exception) -> bool:
    """Publish the running message for a retry; return whether it can be: not if there is none, or if the broker refuses it."""
    if not may_publish_again(publisher, task):
        return False
    name, id = task.name, task.request.id
    try:
        instance, tries = _instance_of(task.saga_step, task.request), retry.times + 1
        delay, left_ms = _parts_of(retry.pause_s, _longest_wait_s(task, publisher))
        publish_again(task, publisher, delay, {STEP_RETRIES: retry.number, PAUSE_LEFT: left_ms})
    except PublishError as exc:
        if exc.connection:  # which says nothing about the message
            requeue(exc)
        logger.warning("%s[%s] cannot be published for a retry: %s", name, id, exc.reason)
        return False
    except SoftTimeLimitExceeded as exc:
        requeue(exc)
    except Exception as exc:  # such as arguments that cannot be encoded again
        logger.warning("%s[%s] cannot be published for a retry: %r", name, id, exc)
        return False
    failure = f"{type(error).__name__}: {' '.join(text_of(error).split())[:TEXT_CHARACTERS]}"
    logger.warning(_FAILED, name, id, instance, retry.number, tries, retry.pause_s, failure)
    return True


def _instance_of(step: StepDefinition, request: Any) -> str:
    """Return the instance of a message, as the log shows it; or only its saga."""
    lookup = lookup_of(step, request)
    if lookup is None:
        return step.saga.name
    return f"{step.saga.name} {'' if lookup.property == KEY else shown_property(step.saga, lookup) + '='}{lookup.value!r}"


def go_on_waiting(task: Any, runtime: Runtime) -> None:
    """Publish the running message again if the pause before its retry is not over; else return.

    Raises:
        Ignore: It was published; this delivery is acknowledged.
        Reject: It could not be published; the broker keeps this delivery.
    """
    left_s, publisher = pause_left_s(task.request, runtime.settings.step_retries), runtime.publisher
    if left_s > 0 and may_publish_again(publisher, task):
        delay, left_ms = _parts_of(left_s, _longest_wait_s(task, publisher))
        publish_again_or_requeue(task, publisher, delay, {PAUSE_LEFT: left_ms})
        raise Ignore()


def pause_left_s(request: Any, backoff: Backoff) -> float:
    """Return what is left of the pause before a message's retry, in seconds: no more than the pause is now, whatever it says."""
    if not backoff.times:
        return 0.0
    longest_s = backoff.pause_s(max(1, read_step_retries(request)))
    return min(read_pause_left(request), int(longest_s * 1000)) / 1000


def _parts_of(pause_s: float, longest_s: float) -> tuple[float, int | None]:
    """Return for how long a message waits in a worker, in seconds, and what is left then, in milliseconds."""
    delay = min(pause_s, longest_s)
    return delay, int((pause_s - delay) * 1000) or None


def _longest_wait_s(task: Any, publisher: ConfirmedPublisher) -> float:
    return below_redelivery_s(publisher.longest_wait_s, longest_redelivery_s(task.app))
