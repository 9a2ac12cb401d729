"""What a step's task raises: its message is retried later, or becomes a dead letter, before it is acknowledged."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from celery.exceptions import Ignore, Reject, TaskPredicate

from celery_sagas.worker.celery_internals import is_terminating
from celery_sagas.worker.failures.dead_letters import keep_or_redeliver
from celery_sagas.worker.failures.redelivery import requeue
from celery_sagas.worker.failures.retries import go_on_waiting, retry_later
from celery_sagas.worker.headers import PAUSE_LEFT
from celery_sagas.worker.runtime import runtime_of

#: Modules whose errors end a greenlet, or signal that its time is over.
_GREEN = frozenset({"eventlet", "gevent", "greenlet"})
#: Modules whose frames are above those of a user's function.
_ABOVE = frozenset({"celery", "celery_sagas", "contextlib"})


def keep_failures(task: Any) -> None:
    """Have a step's task retry the messages that fail, and dead-letter those that fail permanently.

    Its ``run`` is wrapped outside of Celery's ``autoretry_for``, so that errors that arrive here are not retried by it; not its
    ``__call__``, for which Celery would give up its fast path. The error that leaves it has a short traceback. A process of the
    pool writes each frame, some kilobytes, into a pipe of 64 KiB, which a stopping main process may no longer read
    (``AsynPool.flush``). If the pipe is full then, the process cannot report its end, and its worker never ends.
    """
    inner = task.run

    def run(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        if request.called_directly or request.is_eager:
            return inner(*args, **kwargs)
        try:
            return _run(task, request, inner, args, kwargs)
        except (Ignore, Reject) as exc:
            raise exc.with_traceback(None) from None  # the traceback is never read
        except Exception as exc:
            raise exc.with_traceback(below(exc.__traceback__))  # noqa: B904 - it is the same error

    task.run = functools.update_wrapper(run, inner, updated=())


def _run(task: Any, request: Any, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        with failing():
            if PAUSE_LEFT in request.__dict__ and hasattr(task, "saga_step"):
                go_on_waiting(task, runtime_of(task.app))
            return inner(*args, **kwargs)
    except TaskPredicate:
        raise  # retried, ignored or rejected
    except Exception as exc:
        if is_terminating():
            raise Reject(repr(exc), requeue=True) from exc
        try:
            runtime = runtime_of(task.app)
        except Exception as unusable:
            requeue(unusable)
        if hasattr(task, "saga_step"):
            retry_later(task, runtime, exc, below(exc.__traceback__))
        keep_or_redeliver(task, runtime, exc)
        raise


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Turn every error of a user's function into an ``Exception``, unless it ends a process, a thread or a greenlet.

    ``asyncio.CancelledError`` is not one. Celery would treat it as the end of the process, and acknowledge the message.
    """
    try:
        yield
    except BaseException as exc:
        if isinstance(exc, Exception) or _is_end(exc):
            raise
        raise RuntimeError(f"{exc!r}, which is no Exception") from exc


def _is_end(error: BaseException) -> bool:
    modules = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
    return isinstance(error, SystemExit | KeyboardInterrupt) or not modules.isdisjoint(_GREEN)


def below(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the user's first frame on; for an error raised by the library itself, the last frame."""
    while traceback is not None and traceback.tb_next is not None and _is_above(traceback):
        traceback = traceback.tb_next
    return traceback


def _is_above(traceback: TracebackType) -> bool:
    return str(traceback.tb_frame.f_globals.get("__name__")).partition(".")[0] in _ABOVE
