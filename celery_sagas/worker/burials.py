"""Burials: what leaves a step's task as an error is a dead letter before its message is acknowledged."""

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

from celery.exceptions import Ignore, Reject, TaskPredicate

from celery_sagas import signals
from celery_sagas.engine.burial import add_letter, bury, letter_of
from celery_sagas.errors import StoreError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.failures import report
from celery_sagas.worker.internals import is_terminating
from celery_sagas.worker.later import postpone
from celery_sagas.worker.letters import lookup_of, payload_of
from celery_sagas.worker.raised import below, failing
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import session_of

logger = logging.getLogger("celery_sagas")

#: Marks an exception whose message was seen to; it goes with the exception to the worker's main process.
_SEEN_TO = "_celery_sagas_seen_to"


def bury_failures(task: Any) -> None:
    """Have a step's task keep the messages that fail for good.

    Its ``run`` is wrapped outside of Celery's ``autoretry_for``, so that what comes here is not retried; and not its
    ``__call__``, for which Celery would give up its fast path. What leaves it has a short traceback: a process of the pool writes
    each frame, some kilobytes, into a pipe of 64 KiB, which a main process that stops may not read any more
    (``AsynPool.flush``). If the pipe is full then, the process cannot say that it ends, and its worker never does.
    """
    inner = task.run

    def run(*args: Any, **kwargs: Any) -> Any:
        if task.request.called_directly or task.request.is_eager:
            return inner(*args, **kwargs)
        try:
            return _run(task, inner, args, kwargs)
        except (Ignore, Reject) as exc:
            raise exc.with_traceback(None) from None  # nobody reads it
        except Exception as exc:
            raise exc.with_traceback(below(exc.__traceback__))  # noqa: B904 - it is the same error

    task.run = functools.update_wrapper(run, inner, updated=())


def _run(task: Any, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        with failing():
            return inner(*args, **kwargs)
    except TaskPredicate:
        raise  # retried, ignored or rejected
    except Exception as exc:
        if is_terminating():
            raise Reject(repr(exc), requeue=True) from exc
        _bury_or_keep(task, task.request, exc)
        raise


def bury_request(task: Any, request: Any, backend: Backend, error: Exception) -> DeadLetter | None:
    """Make a dead letter of the message of a request, and tell of it; also the saga that waits for its answer.

    Returns:
        The letter, or ``None`` if the message was handled, or buried, before.

    Raises:
        StoreError: It is not known what was written; doing it again completes it.
    """
    step = getattr(task, "saga_step", None)
    if step is None:  # an aggregator's: it has no instance, and no journal
        return _keep(task, request, backend, error)
    message_id = session_of(request).message_id
    letter = letter_of(step.name, message_id, step.saga.name, error, payload_of(task.name, request))
    is_known = letter.message_id == message_id  # else no journal keeps it: what is there under the cut id is another's
    kept = bury(backend, step, letter, lookup_of(step, request) if is_known else None, task.name)
    if kept is not None:
        _tell(task, request, kept, error)
    return kept


def _keep(task: Any, request: Any, backend: Backend, error: Exception) -> DeadLetter:
    letter = letter_of(task.name, session_of(request).message_id, "", error, payload_of(task.name, request))
    add_letter(backend, letter)
    _tell(task, request, letter, error)
    return letter


def _tell(task: Any, request: Any, kept: DeadLetter, error: Exception) -> None:
    logger.error("%s[%s] failed and is kept as the dead letter %s: %s", kept.task, kept.message_id, kept.id, kept.error)
    signals.step_failed.send(sender=task, letter=kept, exception=error)
    report(task.app, request, error, letter=kept.id, may_be_answered=True)  # once its letter is retried


def is_seen_to(error: BaseException) -> bool:
    """Whether the message that failed with this error was buried, or had no need of it, in the process that ran its task."""
    return getattr(error, _SEEN_TO, False) is True


def _bury_or_keep(task: Any, request: Any, error: Exception) -> None:
    try:
        bury_request(task, request, runtime_of(task.app).backend, error)
        with contextlib.suppress(AttributeError):  # of an exception with slots: it is seen to twice
            setattr(error, _SEEN_TO, True)
    except Exception as exc:
        bug = None if isinstance(exc, StoreError) else exc
        logger.warning("%s[%s] cannot be kept as a dead letter: %s", task.name, request.id, exc, exc_info=bug)
        postpone(task, exc)
