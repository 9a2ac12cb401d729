"""The delivery of a message to a step, as its task's request describes it, and what follows once it was handled."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery
from celery.app.task import Context

from celery_sagas import clock, signals
from celery_sagas.core.requests.requests import Addressed, ReplyKind
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.engine.session import Delivery, Session
from celery_sagas.engine.tracing import MessageTrace
from celery_sagas.engine.unit_of_work import NO_VALUE_LATE
from celery_sagas.worker.celery_internals import RunningTask
from celery_sagas.worker.failures.deferral import deferral_of
from celery_sagas.worker.headers import (
    MESSAGE_ID,
    check_message_id,
    headers_of,
    read_address,
    read_question,
    read_retry_of,
    read_return_address_of,
)
from celery_sagas.worker.requests.answers import forget_link
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.sessions import collecting_session

logger = logging.getLogger("celery_sagas")

#: Levels of the log for outcomes; that of the others is ``DEBUG``.
_LEVELS = {
    Kind.IGNORED: logging.INFO,
    Kind.MISSING: logging.INFO,
    Kind.DEFERRED: logging.INFO,
    Kind.DUPLICATE: logging.INFO,
    Kind.FAILED: logging.WARNING,
    Kind.RETRIED: logging.INFO,
    Kind.UNDONE: logging.INFO,
}
#: The message has changed nothing.
_IN_VAIN = frozenset({Kind.IGNORED, Kind.DROPPED, Kind.DUPLICATE})


def delivery_of(
    task: Any, request: Any, session: Session, bound: Mapping[str, Any], runtime: Runtime, trace: MessageTrace | None = None
) -> Delivery:
    """Return the delivery of the message of a task's request.

    Raises:
        InvalidMessage: Its id or its address is malformed.
    """
    step, is_message = task.saga_step, not request.called_directly
    return Delivery(
        step,
        session.message_id,
        bound,
        session,
        caller(task, step),
        _address_of(task, request),
        _max_deliveries_of(request, runtime),
        task.name,
        read_return_address_of(request) if is_message else None,
        clock.now() if step.saga.keeps_messages else None,
        lambda: deferral_of(task, request, session, bound),
        read_question(request) if is_message else "",
        trace,
    )


def _address_of(task: Any, request: Any) -> Addressed | None:
    """Return the address of a timeout; a direct call handles a message of its own, in whichever task it is made."""
    if request.called_directly:
        return None
    check_message_id(task.name, headers_of(request).get(MESSAGE_ID))
    return read_address(request)


def _max_deliveries_of(request: Any, runtime: Runtime) -> int | None:
    """Return the allowed number of deliveries, if the message is a redelivery; its headers may claim that for long."""
    if request.called_directly or not (request.delivery_info or {}).get("redelivered"):
        return None
    return runtime.settings.max_deliveries


def caller(task: Any, step: StepDefinition) -> Callable[..., Any]:
    """Return the function that calls a handler, with the task first if it is bound; an ``if_missing`` function never gets it."""

    def call(function: Any, first: Any, /, **arguments: Any) -> Any:
        if step.bind and function is step.function:
            return function(task, first, **arguments)
        return function(first, **arguments)

    return call


def caller_without_worker(app: Celery, step: StepDefinition, session: Session) -> Callable[..., Any]:
    """Return the function that calls a handler in a process that is no worker, as the current task, in a session of its own."""
    task: Any = app.tasks[step.name]
    call = caller(task, step)
    about: dict[str, Any] = {"retries": 0, "delivery_info": {}, "called_directly": True}  # else retry() would publish it again
    request = Context(id=session.message_id, task=step.name, **about)

    def collecting(function: Any, first: Any, /, **arguments: Any) -> Any:
        with RunningTask(task, request), collecting_session(session):
            return call(function, first, **arguments)

    return collecting


def conclude(task: Any, request: Any, delivery: Delivery, outcome: Outcome, runtime: Runtime) -> None:
    """Report the outcome of a message, and remove what is no longer needed: the answer of its task, and gathered outcomes."""
    _report(task, outcome, read_retry_of(request))
    if runtime.observe is not None:
        runtime.observe(outcome)
    if delivery.return_address is not None:
        forget_link(request, delivery.return_address.request)  # the commit answers, or the instance later
    if outcome.kind in (Kind.FAILED, Kind.DEFERRED):
        return  # gathered outcomes are kept for a deadline, and until they are handled
    address = delivery.addressed
    # a cancelled message may be about another step, and an overtaken one about outcomes that are deferred
    if address is not None and address.came == ReplyKind.GATHERED and outcome.reason not in ("cancelled", "overtaken"):
        runtime.gathering_of(delivery.step.saga).forget(delivery.step.saga, address.instance_id, address.id)


def _report(task: Any, outcome: Outcome, retry_of: str) -> None:
    """Report the outcome of a message in the log and by signals."""
    level = logging.INFO if outcome.reason == NO_VALUE_LATE else _LEVELS.get(outcome.kind, logging.DEBUG)
    logger.log(
        level,
        "%s[%s] %s: %s %r%s",
        outcome.step,
        outcome.message_id,
        outcome.kind,
        outcome.saga,
        outcome.key,
        f" ({outcome.reason})" if outcome.reason else "",
    )
    if retry_of and outcome.kind in _IN_VAIN:
        logger.warning(
            "%s[%s] is the retry of the dead letter %s, and changes nothing: %s %r %s",
            outcome.step,
            outcome.message_id,
            retry_of,
            outcome.saga,
            outcome.key,
            outcome.reason or outcome.kind,
        )
    if outcome.compensated:
        logger.info("%s %r is undone", outcome.saga, outcome.key)
        signals.saga_compensated.send(sender=task, outcome=outcome)
    if outcome.is_new:
        signals.saga_started.send(sender=task, outcome=outcome)
    if outcome.kind is Kind.COMPLETED:
        signals.saga_completed.send(sender=task, outcome=outcome)
    if outcome.kind in (Kind.IGNORED, Kind.DROPPED):
        signals.step_ignored.send(sender=task, outcome=outcome)
