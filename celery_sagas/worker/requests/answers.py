"""Answers of plain tasks: a worker publishes them, confirmed, before their message is acknowledged.

Celery publishes a ``link`` after the task has ended, without confirmation. A failure there cannot requeue the task's message;
an exception of the task can.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import Any

from celery import signature
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu.exceptions import EncodeError

from celery_sagas.errors import MessageError, PublishError
from celery_sagas.worker.celery_internals import has_own_call, time_limit_s
from celery_sagas.worker.failures.redelivery import requeue
from celery_sagas.worker.headers import ADDRESS
from celery_sagas.worker.requests.gather_task import GatherTask
from celery_sagas.worker.runtime import publisher_of
from celery_sagas.worker.sessions import mark_over, marking_as_perhaps_answered, marking_as_unanswered

logger = logging.getLogger("celery_sagas")

#: Seconds for which an answer that the broker does not accept is published again, before the work is done again.
_TIMEOUT_S = 30.0
#: Seconds before the first retry; each pause is twice as long as the one before.
_FIRST_PAUSE_S = 1.0
#: Seconds that are left before a hard time limit: the broker may not respond the last time, and a requeued message is held.
_BEFORE_LIMIT_S = 15.0
_TRIES_AGAIN = "%s[%s] cannot answer yet, and tries again in %.1f s: %s"
#: Marks the request of a running task, which may call its own ``run``; a header may have this name, but not this value.
_RUNNING, _IS_RUNNING = "_celery_sagas_running", object()
#: Marks a wrapped function.
_WRAPPED = "_celery_sagas_answers"


def confirm_answers(task: Any) -> None:
    """Have a plain task publish its answers before it ends, and note when its work is done; a repeated call changes nothing.

    The callable that a worker calls is wrapped: the task's ``run``, outside of ``autoretry_for``, or its class's ``__call__``.
    """
    if hasattr(task, "saga_step"):  # its commit answers
        return
    owner, name = (task.__class__, "__call__") if has_own_call(task) else (task, "run")
    inner = getattr(owner, name)
    if not hasattr(inner, _WRAPPED):
        setattr(owner, name, _answering(inner, task if owner is task else None))


def _answering(inner: Callable[..., Any], task: Any) -> Callable[..., Any]:
    """Wrap the callable that a worker calls; a method that is not bound to one task receives its task first."""

    def run(*args: Any, **kwargs: Any) -> Any:
        running = args[0] if task is None else task
        request = running.request
        if request.called_directly or request.is_eager or request.__dict__.get(_RUNNING) is _IS_RUNNING:
            return inner(*args, **kwargs)
        request.__dict__[_RUNNING] = _IS_RUNNING
        result = _run(running, functools.partial(inner, *args, **kwargs))
        mark_over(request)
        return result

    setattr(run, _WRAPPED, True)
    return functools.update_wrapper(run, inner, updated=())


def forget_link(request: Any, answered: str) -> None:
    """Remove the answer to a request from the messages that follow a step: its commit sends the answer."""
    request.callbacks = [link for link in request.callbacks or () if _request_of(link) != answered]


def _is_asked(request: Any) -> bool:
    """Return whether a message that follows a task answers a request."""
    return any(_request_of(link) is not None for link in request.callbacks or ())


def _take_links(request: Any) -> list[Any]:
    """Remove the messages that answer requests from those that follow a task, and return them."""
    links = [link for link in request.callbacks or () if _request_of(link) is not None]
    request.callbacks = [link for link in request.callbacks or () if _request_of(link) is None]
    return links


def _request_of(link: Any) -> object:
    address = ((link.get("options") or {}).get("headers") or {}).get(ADDRESS)
    return address.get("request") if isinstance(address, dict) else None


def _run(task: Any, run: Callable[[], Any]) -> Any:
    if not _is_asked(task.request):
        return run()
    began = time.monotonic()
    with marking_as_unanswered():
        result = run()
        until = _deadline(task, began)
        with marking_as_perhaps_answered(SoftTimeLimitExceeded):  # an answer may be on its way
            for link in _take_links(task.request):
                _answer(task, signature(link, app=task.app).clone((result,)), until)
    return result


def _deadline(task: Any, began: float) -> float:
    """Return the time until which a task that has done its work may try to answer."""
    limit_s, ends_at = time_limit_s(task), time.monotonic() + _TIMEOUT_S
    return ends_at if limit_s is None else min(ends_at, began + limit_s - _BEFORE_LIMIT_S)


def _answer(task: Any, answer: Signature[Any], until: float) -> None:
    """Publish an answer, unless it belongs to a gather's member and can be collected here.

    Raises:
        Reject: The broker does not confirm it. The task's message is requeued, unless it is acknowledged already.
        Exception: The answer cannot be sent; or the task's time is over.
    """
    known = task.app.tasks.get(answer.task)
    if isinstance(known, GatherTask) and known.collects(answer.args, answer.options["headers"]):
        return
    error = _refusal(task, answer)
    if error is not None:
        error = _publish_again(task, answer, until, error)
    if error is None:
        return
    fate = "comes again: it answers then" if task.acks_late else "was acknowledged early: nothing comes of it"
    logger.warning("%s[%s] cannot answer, and %s: %s", task.name, task.request.id, fate, error.reason)
    if task.acks_late:
        requeue(error)


def _publish_again(task: Any, answer: Signature[Any], until: float, error: PublishError) -> PublishError | None:
    """Publish an answer until the broker accepts it, or the time is over; then return the last error.

    The work is not repeated for that. A soft time limit ends it, and is not a failure: the work is done.
    """
    pause_s = _FIRST_PAUSE_S
    with contextlib.suppress(SoftTimeLimitExceeded):
        while (left_s := until - time.monotonic()) > 0:
            pause_s = min(pause_s, left_s)
            logger.warning(_TRIES_AGAIN, task.name, task.request.id, pause_s, error.reason)
            time.sleep(pause_s)
            with marking_as_perhaps_answered(Exception):  # the one before may have arrived
                again = _refusal(task, answer)
            if again is None:
                return None
            error, pause_s = again, 2 * pause_s
    return error


def _refusal(task: Any, answer: Signature[Any]) -> PublishError | None:
    """Publish an answer; return the error if the broker does not accept it now.

    Raises:
        Exception: It cannot be sent; or the task's time is over.
    """
    try:
        publisher_of(task.app).publish_signature(answer)
    except PublishError as exc:
        error = exc
    else:
        return None
    cause = error.__cause__ or error
    if isinstance(cause, EncodeError) and isinstance(cause.__context__, MessageError):  # its text says what to write instead
        cause = cause.__context__
    if not error.connection or isinstance(cause, SoftTimeLimitExceeded):
        raise cause
    return error
