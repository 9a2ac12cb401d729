"""Requests in a worker's main process, which alone sees every end of a task: failures are dead-lettered, or notified of."""

import functools
import logging
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Ignore, Reject, Retry, TaskPredicate, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name

from celery_sagas.core.requests.answers import FailureKind
from celery_sagas.worker.celery_internals import is_terminating
from celery_sagas.worker.failures.dead_letters import is_kept, keep_as_dead_letter
from celery_sagas.worker.failures.notifications import DEADLINE_S, notify_requester_in_time
from celery_sagas.worker.failures.unreadable import context_of, refusing
from celery_sagas.worker.headers import read_retries
from celery_sagas.worker.runtime import main_process_backends, within
from celery_sagas.worker.sessions import may_be_answered, session_of_failed

logger = logging.getLogger("celery_sagas")

#: Errors that do not end a step's message: caused by the task itself, an operator, or the flag ``reject_on_worker_lost``.
_NO_FAILURES = (TaskPredicate, Terminated, WorkerLostError)
#: Errors that do not end a message, or are notified of as a revocation.
_NO_END = (Ignore, Retry, Terminated)


@functools.cache
def _subclass(request: type) -> type:
    return type("FailingRequest", (FailingRequest, request), {"__module__": __name__})


def keeping_failures(request: Any) -> Any:
    """Return a request class, given as a class or by its name, with the additions of ``FailingRequest``."""
    cls = symbol_by_name(request)
    return cls if issubclass(cls, FailingRequest) else _subclass(cls)


class FailingRequest:
    """A request that handles a failure before acknowledging its message: if the main process dies in between, it is redelivered.

    The message of a step, of an aggregator's item or of a gather is dead-lettered if its own process has not done so: after
    a hard time limit, or an error outside of ``run``, such as one of the user's ``before_start``. It is then acknowledged, or
    requeued if the store is unavailable. For any other task with a request for an answer, the requester is notified of an
    exception after the last retry, a time limit, a lost process of the pool, or a revocation.

    A pool of processes calls ``on_failure`` first, and ``on_timeout`` after it, before it kills the process; pools of greenlets
    call ``on_timeout`` alone. Celery would acknowledge or requeue in either of them, depending on the task's flags and on its
    release. It leaves messages alone that were settled here.
    """

    #: Whether a process handles the message together with others.
    is_batched = False
    _is_settled = False
    _is_notified = False

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of Celery's request."""

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End the process that runs the task, as ``revoke(terminate=True)`` asks, unless it would end others with it."""
        if self.is_batched:
            logger.warning("%s[%s] is not terminated: its process handles other messages, too", self.name, self.id)
            return
        super().terminate(pool, signal)  # type: ignore[misc]

    @refusing
    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Handle a hard time limit."""
        if not soft:
            self._see_to(TimeLimitExceeded(timeout), may_notify=not is_terminating())
        with session_of_failed(context_of(self)):
            super().on_timeout(soft, timeout)  # type: ignore[misc]

    @refusing
    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Handle the exception of a task, or the loss of its process."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        # an error of Celery's own, such as of its result backend, may follow the answer
        self._see_to(error, may_be_answered=exc_info.internal or may_be_answered(error))
        with session_of_failed(context_of(self)):
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]

    @refusing
    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Notify of a revocation, or of a message that expired, before Celery acknowledges it."""
        self._notify("it expired before a worker began it" if expired else f"it was {reason}", "revoked")
        try:
            super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        except Exception:  # of the result backend, perhaps because of the message: it would end this worker, and the next
            logger.exception("%s[%s] was revoked or has expired, and the result backend cannot say so", self.name, self.id)
            self.acknowledge()
            self._already_revoked = True

    def _see_to(self, error: BaseException, *, may_be_answered: bool = False, may_notify: bool = True) -> None:
        is_failure = isinstance(error, Exception) and not isinstance(error, _NO_FAILURES)
        if is_failure and getattr(self.task, "keeps_failures", False) and not is_kept(error):
            self._settle(error)
        if not may_notify:
            return
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._notify_of_exit(error)
        elif not isinstance(error, _NO_END) and not self._goes_on(error):
            # a time limit may strike after the answer was sent
            self._notify(error, may_be_answered=may_be_answered or isinstance(error, TimeLimitExceeded))

    def _settle(self, error: BaseException) -> None:
        """Dead-letter the message and acknowledge it, or requeue it if the store is unavailable; once."""
        if self._is_settled:
            return
        self._is_settled = True
        try:
            within(DEADLINE_S, functools.partial(_dead_letter, self, error))
        except Exception as exc:
            fate = "is lost: it was acknowledged early" if self.acknowledged else "is requeued"
            logger.warning("%s[%s] cannot be kept as a dead letter and %s: %r", self.task.name, self.id, fate, exc)
            self.reject(requeue=True)
        else:
            self.acknowledge()

    def _notify_of_exit(self, error: BaseException) -> None:
        """Notify of an ended process, unless Celery has ended it, or treats that as a loss and requeues the message."""
        is_loss = hasattr(self, "_worker_lost_info")  # since Celery 5.7
        if not (self._already_cancelled or self._already_revoked or (is_loss and self._comes_again_when_lost())):
            self._notify(WorkerLostError(repr(error)))

    def _goes_on(self, error: BaseException) -> bool:
        """Return whether the message is redelivered, or its failure is notified of elsewhere."""
        task = self.task
        if isinstance(error, Reject):
            return bool(error.requeue)  # type: ignore[attr-defined]
        if isinstance(error, WorkerLostError):
            return self._comes_again_when_lost()
        if hasattr(task, "saga_step") or hasattr(task, "saga_aggregator"):
            return True  # as a dead letter
        if isinstance(error, TimeLimitExceeded):
            return bool(task.acks_late and not _is_acknowledged_on_timeout(task))
        return isinstance(error, MemoryError) and bool(task.acks_late)  # it ends the worker

    def _comes_again_when_lost(self) -> bool:
        task = self.task
        if getattr(task, "retry_on_worker_lost", False):  # since Celery 5.7
            return task.max_retries is None or read_retries(self._context) < task.max_retries
        return bool(task.acks_late and task.reject_on_worker_lost)

    def _notify(self, error: BaseException | str, kind: FailureKind = "error", *, may_be_answered: bool = False) -> None:
        if not self._is_notified:  # a time limit is met twice
            self._is_notified = True
            notify_requester_in_time(self.app, context_of(self), error, kind, may_be_answered=may_be_answered)


def _dead_letter(request: Any, error: Any) -> None:
    with main_process_backends(request.app) as backends:
        keep_as_dead_letter(request.task, context_of(request), backends, error)


def _is_acknowledged_on_timeout(task: Any) -> bool:
    """Return whether a hard time limit ends the message; before Celery 5.7 one flag covers time limits and failures."""
    flag = getattr(task, "acks_on_timeout", None)
    return bool(task.acks_on_failure_or_timeout if flag is None else flag)
