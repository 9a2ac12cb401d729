"""Requests, in a worker's main process, that tell of their failures whoever waits for their answers."""

import functools
import logging
from typing import Any

from billiard.einfo import ExceptionWithTraceback  # type: ignore[attr-defined]
from celery.exceptions import Ignore, Reject, Retry, Terminated, TimeLimitExceeded, WorkerLostError
from celery.utils.imports import symbol_by_name

from celery_sagas.core.answers import FailureKind
from celery_sagas.worker.answers import may_be_answered
from celery_sagas.worker.failures import report_in_time
from celery_sagas.worker.headers import read_retries
from celery_sagas.worker.internals import is_terminating
from celery_sagas.worker.sessions import session_of_failed
from celery_sagas.worker.unreadable import context_of, refusing

logger = logging.getLogger("celery_sagas")

#: They are no end of a message, or are told of as a revocation.
_NO_END = (Ignore, Retry, Terminated)


@functools.cache
def _subclass(request: type) -> type:
    return type("ReportingRequest", (Reporting, request), {"__module__": __name__})


def reporting(request: Any) -> Any:
    """Return a request class, given by itself or by its name, with what ``Reporting`` adds."""
    cls = symbol_by_name(request)
    return cls if issubclass(cls, Reporting) else _subclass(cls)


class Reporting:
    """A request that tells of its failure whoever waits for its answer.

    The main process alone sees each end that a task can have: an exception after the last retry, a time limit, a lost process of
    the pool, a revocation. It tells before the message is acknowledged: if it dies in between, the message comes again. What
    becomes a dead letter is told of where that is made.
    """

    _is_reported = False

    @refusing
    def on_timeout(self, soft: bool, timeout: float) -> None:
        """Tell of a hard time limit."""
        if not soft and not is_terminating():
            self._report_of(TimeLimitExceeded(timeout))
        with session_of_failed(context_of(self)):
            super().on_timeout(soft, timeout)  # type: ignore[misc]

    @refusing
    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Tell of what a task has raised, or of its lost process."""
        error = exc_info.exception
        error = error.exc if isinstance(error, ExceptionWithTraceback) else error
        # an error of Celery's own, such as of its result backend, may come after the answer was sent
        self._report_of(error, may_be_answered=exc_info.internal or may_be_answered(error))
        with session_of_failed(context_of(self)):
            return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]

    @refusing
    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        """Tell of a revocation, or of a message that expired, before Celery acknowledges it."""
        request: Any = self
        self._report("it expired before a worker began it" if expired else f"it was {reason}", "revoked")
        try:
            super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        except Exception:  # of the result backend, over the message perhaps: the worker would end, and the next one that gets it
            logger.exception("%s[%s] was revoked or has expired, and the result backend cannot say so", request.name, request.id)
            request.acknowledge()
            request._already_revoked = True

    def _report_of(self, error: BaseException, *, may_be_answered: bool = False) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._report_exit(error)
        elif not isinstance(error, _NO_END) and not self._goes_on(error):
            # a time limit may strike when the answer was sent already
            self._report(error, may_be_answered=may_be_answered or isinstance(error, TimeLimitExceeded))

    def _report_exit(self, error: BaseException) -> None:
        """Tell of a process that has ended, unless Celery has ended it, or takes that for a loss and gives the message back."""
        request: Any = self
        is_loss = hasattr(request, "_worker_lost_info")  # since Celery 5.7
        if not (
            request._already_cancelled or request._already_revoked or (is_loss and self._comes_again_when_lost(request.task))
        ):
            self._report(WorkerLostError(repr(error)))

    def _goes_on(self, error: BaseException) -> bool:
        """Whether the message comes again, or its failure is told of elsewhere."""
        task: Any = self.task  # type: ignore[attr-defined]
        if isinstance(error, Reject):
            return bool(error.requeue)  # type: ignore[attr-defined]
        if isinstance(error, WorkerLostError):
            return self._comes_again_when_lost(task)
        if hasattr(task, "saga_step") or hasattr(task, "saga_aggregator"):
            return True  # as a dead letter
        if isinstance(error, TimeLimitExceeded):
            return bool(task.acks_late and not _is_acknowledged_on_timeout(task))
        return isinstance(error, MemoryError) and bool(task.acks_late)  # it ends the worker

    def _comes_again_when_lost(self, task: Any) -> bool:
        request: Any = self
        if getattr(task, "retry_on_worker_lost", False):  # since Celery 5.7
            return task.max_retries is None or read_retries(request._context) < task.max_retries
        return bool(task.acks_late and task.reject_on_worker_lost)

    def _report(self, error: BaseException | str, kind: FailureKind = "error", *, may_be_answered: bool = False) -> None:
        request: Any = self
        if not self._is_reported:  # a time limit is met twice
            self._is_reported = True
            report_in_time(request.app, context_of(self), error, kind, may_be_answered=may_be_answered)


def _is_acknowledged_on_timeout(task: Any) -> bool:
    """Whether a hard time limit ends the message; before Celery 5.7 one flag covers time limits and failures."""
    flag = getattr(task, "acks_on_timeout", None)
    return bool(task.acks_on_failure_or_timeout if flag is None else flag)
