"""Messages of ours whose task a worker does not know: Celery would drop them."""

import functools
import logging
from collections.abc import Mapping
from typing import Any

from celery import bootsteps
from celery.app.task import Context
from celery.exceptions import NotRegistered

from celery_sagas import signals
from celery_sagas.core.registry import registry
from celery_sagas.engine.burial import letter_of
from celery_sagas.settings import is_default_backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.deadline import within
from celery_sagas.worker.failures import report_in_time
from celery_sagas.worker.headers import ADDRESS, AGGREGATOR, CAUSATION, CAUSE, MESSAGE_ID, read_message_id
from celery_sagas.worker.later import HELD_S
from celery_sagas.worker.letters import payload_of
from celery_sagas.worker.requests import DEADLINE_S
from celery_sagas.worker.runtime import borrowed_backend

logger = logging.getLogger("celery_sagas")

_OURS = (CAUSE, CAUSATION, ADDRESS, AGGREGATOR, MESSAGE_ID)


class KeepUnknownTasks(bootsteps.Step):
    """Puts itself before the consumer's ``on_unknown_task``, which rejects a message before anybody else sees it."""

    def create(self, consumer: Any) -> None:
        """Have the consumer tell whoever waits for an answer, and keep what else is ours."""
        reject = consumer.on_unknown_task

        @functools.wraps(reject)
        def on_unknown_task(body: Any, message: Any, exc: Exception) -> None:
            request = _request_of(message)
            if report_in_time(consumer.app, request, NotRegistered(str(request.task))) or _is_over(consumer, message, request):
                reject(body, message, exc)

        consumer.on_unknown_task = on_unknown_task


def _is_over(consumer: Any, message: Any, request: Any) -> bool:
    """Whether nobody needs the message any more: it is not ours, or is kept."""
    has_store = registry or not is_default_backend(consumer.app.conf)
    return not has_store or not _is_ours(request) or keep(consumer, message, request)


def keep(consumer: Any, message: Any, request: Any) -> bool:
    """Keep a message as a dead letter; if the store cannot, give it back to the broker after a while.

    Returns:
        Whether it was kept.
    """
    letter = _letter_of(request)
    try:
        within(DEADLINE_S, functools.partial(_add, consumer.app, letter))
    except Exception as exc:
        logger.warning(
            "%s[%s] is not known here and cannot be kept as a dead letter; it goes back to the broker in %.0f s: %r",
            letter.task,
            letter.message_id,
            HELD_S,
            exc,
        )
        give_back = functools.partial(message.reject_log_error, logger, consumer.connection_errors, requeue=True)
        consumer.timer.call_after(HELD_S, consumer.call_soon, (give_back,))
        return False
    logger.error("%s[%s] is not known here and is kept as the dead letter %s", letter.task, letter.message_id, letter.id)
    signals.step_failed.send(sender=letter.task, letter=letter, exception=NotRegistered(letter.task))
    return True


def _add(app: Any, letter: DeadLetter) -> None:
    with borrowed_backend(app) as backend:
        backend.dead.add(letter)


def _letter_of(request: Any) -> DeadLetter:
    name = str(request.task)
    saga = _saga_of(name)
    letter = letter_of(name, read_message_id(request), saga or "", NotRegistered(name), payload_of(name, request))
    return letter._replace(text="No worker that got this message knows its task: deploy the code that defines it, then retry.")


def _is_ours(request: Any) -> bool:
    headers: Mapping[str, Any] = request.headers or {}
    return any(name in headers for name in _OURS) or _saga_of(str(request.task)) is not None


def _saga_of(task: str) -> str | None:
    """Return the stored name of the saga whose step a task must be by its name."""
    saga = registry.saga_named(task.rpartition(".")[0])
    return saga.name if saga else None


def _request_of(message: Any) -> Any:
    """Return what a task of this message would have had as its request, in either of Celery's protocols."""
    headers = dict(message.headers or {})
    properties = {"delivery_info": {"priority": (message.properties or {}).get("priority")}, "called_directly": False}
    if "task" not in headers:
        return Context({**message.payload, "headers": headers}, **properties)
    try:
        args, kwargs, embed = message.payload
    except Exception as exc:  # what cannot be read is not lost either
        logger.warning("%s[%s] cannot be decoded: %r", headers["task"], headers.get("id"), exc)
        args, kwargs, embed = [repr(exc)], {}, {}
    return Context({**headers, **(embed or {})}, args=args, kwargs=kwargs, **properties)
