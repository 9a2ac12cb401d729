"""Messages that a worker cannot accept: of an unknown task (Celery would drop them), or unreadable (they would end it)."""

import functools
import logging
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from celery import bootsteps
from celery import signals as celery_signals
from celery.exceptions import NotRegistered
from celery.utils.objects import Bunch

from celery_sagas import signals
from celery_sagas.core.registry import registry
from celery_sagas.engine.dead_letters.dead_lettering import add_dead_letter, dead_letter_id_of, dead_letter_of
from celery_sagas.settings import read_settings
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.backends import default_file, has_backend, prepare_backend
from celery_sagas.worker.failures.dead_letters import payload_of
from celery_sagas.worker.failures.faults import UNREADABLE
from celery_sagas.worker.failures.notifications import DEADLINE_S, notify_requester_in_time
from celery_sagas.worker.failures.redelivery import Hold
from celery_sagas.worker.failures.unreadable import guard_consumer, request_of
from celery_sagas.worker.headers import (
    ADDRESS,
    AGGREGATOR,
    CAUSATION,
    CAUSE,
    MESSAGE_ID,
    RETURN_ADDRESS,
    STEP,
    headers_of,
    is_name,
    read_message_id,
    task_of,
)
from celery_sagas.worker.runtime import main_process_backends, within

logger = logging.getLogger("celery_sagas")

#: Messages to this library's tasks: steps, timeouts and answers of requests, items of aggregators.
_TO_OURS = (STEP, ADDRESS, AGGREGATOR)
#: Messages to any task that belong to sagas.
_CAUSED = (CAUSE, CAUSATION, MESSAGE_ID)
_UNKNOWN = "No worker that got this message knows its task: deploy the code that defines it, then retry."


class Fate(Enum):
    """The fate of a message that a worker cannot accept."""

    HELD = auto()  #: requeued after a while
    KEPT = auto()  #: as a dead letter
    OVER = auto()  #: its requester is notified, or it is not ours


class KeepUnknownTasks(bootsteps.Step):
    """Wraps the consumer's ``on_unknown_task``, which rejects a message before other code sees it.

    It also wraps the consumer's handling of each message: an unreadable message ends, and the worker continues.
    """

    def create(self, consumer: Any) -> None:
        """Have the consumer keep this library's messages, or notify requesters."""
        consumer.saga_hold = Hold(consumer)
        guard_consumer(consumer, refuse)
        reject = consumer.on_unknown_task

        @functools.wraps(reject)
        def on_unknown_task(body: Any, message: Any, exc: Exception) -> None:
            request = request_of(message)
            fate = _see_to(consumer, message, request, NotRegistered(task_of(request)))
            if fate is Fate.OVER:
                reject(body, message, exc)
            elif fate is Fate.KEPT:
                _reject_kept(consumer, message, request, exc)

        consumer.on_unknown_task = on_unknown_task
        _keep_invalid(consumer)


def _keep_invalid(consumer: Any) -> None:
    """Wrap the consumer's callbacks for messages that it cannot decode, which Celery rejects or acknowledges."""
    reject, drop = consumer.on_invalid_task, consumer.on_decode_error

    def keeps(message: Any, exc: Exception) -> bool:
        if not _concerns_us(message):
            return False
        if refuse(consumer, message, exc):
            message.reject_log_error(logger, consumer.connection_errors)
            celery_signals.task_rejected.send(sender=consumer, message=message, exc=exc)
        return True

    @functools.wraps(reject)
    def on_invalid_task(body: Any, message: Any, exc: Exception) -> None:
        if not keeps(message, exc):
            reject(body, message, exc)

    @functools.wraps(drop)
    def on_decode_error(message: Any, exc: Exception) -> None:
        if not keeps(message, exc):
            drop(message, exc)

    consumer.on_invalid_task, consumer.on_decode_error = on_invalid_task, on_decode_error


def _concerns_us(message: Any) -> bool:
    """Return whether a message that may not be decoded goes to a step, an aggregator or an instance, or requests an answer."""
    headers = message.headers
    if not isinstance(headers, Mapping) or not isinstance(task := headers.get("task"), str):
        return False
    return _saga_of(task) is not None or not headers.keys().isdisjoint((*_TO_OURS, *_CAUSED, RETURN_ADDRESS))


def refuse(consumer: Any, message: Any, error: Exception) -> bool:
    """Keep a message that has raised an error while it was read, or notify of it, as of an unknown one.

    If that fails because of the message itself, it would fail each time; after any other failure the message is requeued.

    Returns:
        Whether to reject it now; else it is requeued after a while.
    """
    task = message.headers.get("task")
    try:
        fate = _see_to(consumer, message, request_of(message), error)
    except Exception as exc:
        if isinstance(exc, UNREADABLE) and not isinstance(exc, OSError):
            logger.exception("a message for %r cannot be kept as a dead letter, and is rejected", task)
            return True
        seconds = consumer.saga_hold.begin()
        logger.exception("a message for %r cannot be refused now; it is requeued in %.0f s", task, seconds)
        consumer.saga_hold.hold(message)
        return False
    if fate is Fate.HELD:
        return False
    logger.error("a message for %r cannot be read: %r", task, error, exc_info=error)
    return True


def _see_to(consumer: Any, message: Any, request: Any, error: Exception) -> Fate:
    """Keep a message, or notify its requester, as needed."""
    if not _is_to_ours(request):
        if notify_requester_in_time(consumer.app, request, error) or not _is_ours(consumer.app, request):
            return Fate.OVER
        return keep(consumer, message, request, error)
    fate = keep(consumer, message, request, error)
    if fate is Fate.KEPT:
        dead_letter = dead_letter_id_of(task_of(request), read_message_id(request))
        notify_requester_in_time(consumer.app, request, error, dead_letter=dead_letter)
    return fate


def _reject_kept(consumer: Any, message: Any, request: Any, exc: Exception) -> None:
    """Handle a message of an unknown task as Celery's ``on_unknown_task`` does, without logging that it is discarded."""
    message.reject_log_error(logger, consumer.connection_errors)
    id, name, properties = request.id, task_of(request), message.properties
    if is_name(id):  # under another id no result is found
        reply = {field: properties.get(field) for field in ("correlation_id", "reply_to")}
        failed = Bunch(name=name, chord=None, errbacks=None, root_id=request.root_id, **reply)
        consumer.app.backend.mark_as_failure(id, NotRegistered(name), request=failed)
        if consumer.event_dispatcher:
            consumer.event_dispatcher.send("task-failed", uuid=id, exception=f"NotRegistered({name!r})")
    celery_signals.task_unknown.send(sender=consumer, message=message, exc=exc, name=name, id=id)


def keep(consumer: Any, message: Any, request: Any, error: Exception) -> Fate:
    """Keep a message as a dead letter; if the store fails, or has just failed, requeue it after a while.

    Args:
        consumer: The worker's consumer.
        message: The received message.
        request: The message's request.
        error: Why no task runs.

    Returns:
        Whether it is kept, or held.
    """
    hold: Hold = consumer.saga_hold
    if hold.lasts:
        hold.hold(message)
        return Fate.HELD
    dead_letter = _dead_letter_of(request, error)
    why = "is not known here" if isinstance(error, NotRegistered) else "cannot be read"
    try:
        within(DEADLINE_S, functools.partial(_add, consumer.app, dead_letter))
    except Exception as exc:
        logger.warning(
            "%s[%s] %s and cannot be kept as a dead letter; it is requeued in %.0f s, as are others of its kind: %r",
            dead_letter.task,
            dead_letter.message_id,
            why,
            hold.begin(),
            exc,
        )
        hold.hold(message)
        return Fate.HELD
    hold.end()
    where = "" if has_backend(consumer.app) else f" in {default_file()}: set saga_backend, so that it is kept with the sagas"
    logger.error(
        "%s[%s] %s and is kept as the dead letter %s%s", dead_letter.task, dead_letter.message_id, why, dead_letter.id, where
    )
    signals.step_failed.send(sender=dead_letter.task, dead_letter=dead_letter, exception=error)
    return Fate.KEPT


def _add(app: Any, dead_letter: DeadLetter) -> None:
    with main_process_backends(app) as backends:
        if not registry:  # no bootstep has done so
            prepare_backend(backends.default, read_settings(app.conf), processes=1)
        add_dead_letter(backends.of(registry.saga_named(dead_letter.saga)), dead_letter)


def _dead_letter_of(request: Any, error: Exception) -> DeadLetter:
    name = task_of(request)
    dead_letter = dead_letter_of(name, read_message_id(request), _saga_of(name) or "", error, payload_of(name, request))
    return dead_letter._replace(text=_UNKNOWN) if isinstance(error, NotRegistered) else dead_letter


def _is_ours(app: Any, request: Any) -> bool:
    """Return whether to keep a message to any task; without a configured backend it is not kept."""
    if _saga_of(task_of(request)) is not None:
        return True
    return has_backend(app) and not headers_of(request).keys().isdisjoint(_CAUSED)


def _is_to_ours(request: Any) -> bool:
    return not headers_of(request).keys().isdisjoint(_TO_OURS)


def _saga_of(task: str) -> str | None:
    """Return the stored name of the saga whose step a task must be, judged by its name."""
    saga = registry.saga_named(task.rpartition(".")[0])
    return saga.name if saga else None
