"""Requests of steps in a worker's main process, which alone sees a hard time limit, and what fails outside of ``run``."""

import functools
import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import TaskPredicate, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name

from celery_sagas.worker.burials import bury_request, is_seen_to
from celery_sagas.worker.deadline import within
from celery_sagas.worker.runtime import borrowed_backend
from celery_sagas.worker.unreadable import context_of

logger = logging.getLogger("celery_sagas")

#: Seconds that the main process waits for the store: nothing is consumed meanwhile, and no heartbeat is sent.
DEADLINE_S = 10.0
#: They do not end a message: a task's own choice, an operator's, or that of the flag ``reject_on_worker_lost``.
_NO_FAILURES = (TaskPredicate, Terminated, WorkerLostError)


@functools.cache
def _subclass(request: type) -> type:
    return type("StepRequest", (Burying, request), {"__module__": __name__})


def burying(request: Any) -> Any:
    """Return a request class, given by itself or by its name, with what ``Burying`` adds."""
    cls = symbol_by_name(request)
    return cls if issubclass(cls, Burying) else _subclass(cls)


class Burying:
    """What a hard time limit means to a step: its message is buried, then acknowledged; or it goes back to the broker.

    So it is with an error that does not come from ``run``, such as one of the user's ``before_start`` or ``__call__``.

    A pool of processes calls ``on_failure`` first, and ``on_timeout`` after it, before it kills the process; pools of greenlets
    call ``on_timeout`` alone. Celery would acknowledge or requeue in either of them, as the task's flags and its release say:
    what was settled here, it leaves alone.
    """

    is_settled = False

    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Bury the message of a task whose time is over."""
        if not soft:
            self.settle(TimeLimitExceeded(timeout))
        super().on_timeout(soft, timeout)  # type: ignore[misc]

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Bury the message of a task whose time is over, or that failed, unless its own process has seen to it."""
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, Exception) and not isinstance(error, _NO_FAILURES) and not is_seen_to(error):
            self.settle(error)
        return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]

    def settle(self, error: Exception) -> None:
        """Bury the message and acknowledge it, or give it back if the store cannot serve; once."""
        if self.is_settled:
            return
        self.is_settled = True
        request: Any = self
        try:
            within(DEADLINE_S, functools.partial(_bury, request, error))
        except Exception as exc:
            fate = "is lost: it was acknowledged early" if request.acknowledged else "goes back to the broker"
            logger.warning("%s[%s] cannot be kept as a dead letter and %s: %r", request.task.name, request.id, fate, exc)
            request.reject(requeue=True)
        else:
            request.acknowledge()


def _bury(request: Any, error: Exception) -> None:
    with borrowed_backend(request.app) as backend:
        bury_request(request.task, context_of(request), backend, error)
