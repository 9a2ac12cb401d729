"""Dead letters: if a step's task ends with an error, its message becomes one before it is acknowledged."""

import contextlib
import json
import logging
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu.utils.json import dumps, loads

from celery_sagas import signals
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import add_dead_letter, dead_letter_of, keep_dead_letter, locate
from celery_sagas.errors import MessageError, StoreError
from celery_sagas.stores.records import DeadLetter, Lookup
from celery_sagas.worker.backends import Backends
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.failures.redelivery import redeliver_or_requeue
from celery_sagas.worker.headers import (
    DEFERRED_SINCE,
    LOOKS,
    MESSAGE_ID,
    PAUSE_LEFT,
    REDELIVERIES,
    STEP_RETRIES,
    WAITED,
    check_message_id,
    count_of,
    headers_of,
    read_address,
    read_question,
)
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.serialization import deserialized
from celery_sagas.worker.sessions import session_of

logger = logging.getLogger("celery_sagas")

#: Marks an exception whose message was dead-lettered; the mark reaches the worker's main process with the exception.
_IS_KEPT = "_celery_sagas_is_kept"
#: Headers that belong to one delivery of a message, not to the message.
_PASSING = frozenset({REDELIVERIES, PAUSE_LEFT, DEFERRED_SINCE, LOOKS, WAITED, "redelivered"})
#: On a request: why its message cannot be decoded.
UNDECODED = "_celery_sagas_undecoded"
#: How many characters of the sender's representation of the arguments are kept for an unwritable message, as in Celery.
_REPR_CHARACTERS = 1_024


def keep_or_redeliver(task: Any, runtime: Runtime, error: Exception) -> None:
    """Make a dead letter of the running message of a task, or redeliver it later if that fails.

    Raises:
        Ignore: It was published again.
        Reject: The broker keeps this delivery.
    """
    try:
        keep_as_dead_letter(task, task.request, runtime.backends, error)
        with contextlib.suppress(AttributeError):  # an exception with slots: the main process does it once more
            setattr(error, _IS_KEPT, True)
    except Exception as exc:
        bug = None if isinstance(exc, StoreError) else exc
        logger.warning("%s[%s] cannot be kept as a dead letter: %s", task.name, task.request.id, exc, exc_info=bug)
        redeliver_or_requeue(task, runtime.publisher, exc)


def is_kept(error: BaseException) -> bool:
    """Return whether the message of this error was dead-lettered, or did not need it, in the process that ran it."""
    return getattr(error, _IS_KEPT, False) is True


def keep_as_dead_letter(task: Any, request: Any, backends: Backends, error: Exception) -> DeadLetter | None:
    """Make a dead letter of the message of a request, log it, send the signal, and notify the requester.

    Returns:
        The dead letter, or ``None`` if the message was handled or dead-lettered before.

    Raises:
        StoreError: It is unknown what was written; repeating the call completes it.
    """
    step: StepDefinition | None = getattr(task, "saga_step", None)
    backend = backends.of(step.saga if step else None)
    message_id = session_of(request).message_id
    name, saga = (step.name, step.saga.name) if step else (task.name, "")
    dead_letter = dead_letter_of(name, message_id, saga, error, payload_of(task.name, request))
    kept: DeadLetter | None = dead_letter
    if step is None:  # an aggregator's: it has no instance, and no journal
        add_dead_letter(backend, dead_letter)
    else:
        is_known = dead_letter.message_id == message_id  # else no journal records it: the cut id may be another message's
        lookup = lookup_of(step, request) if is_known else None
        kept = keep_dead_letter(backend, step, dead_letter, lookup, named=task.name, question=read_question(request))
    if kept is not None:
        announce(task, kept, error)
        notify_requester(task.app, request, error, dead_letter=kept.id)
    return kept


def tries_of(dead_letter: DeadLetter) -> int:
    """Return how often the message of a dead letter was tried, as far as it says: once, and with each retry again."""
    if dead_letter.number:  # an item
        return 1
    try:
        options = json.loads(dead_letter.payload)["options"]
        counts = (options.get("retries"), (options.get("headers") or {}).get(STEP_RETRIES))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # it holds no message
        return 1
    return 1 + sum(map(count_of, counts))


def announce(task: Any, dead_letter: DeadLetter, error: Exception) -> None:
    """Log a new dead letter, and send the signal."""
    tries = tries_of(dead_letter)
    logger.error(
        "%s[%s] failed%s and is kept as the dead letter %s: %s",
        dead_letter.task,
        dead_letter.message_id,
        f" {tries} times" if tries > 1 else "",
        dead_letter.id,
        dead_letter.error,
    )
    signals.step_failed.send(sender=task, dead_letter=dead_letter, exception=error)


def payload_of(task: str, request: Any) -> str:
    """Return the message of a request as the JSON text of its signature.

    Args:
        task: Its name.
        request: A task's request, or an object like one.
    """
    if undecoded := request.__dict__.get(UNDECODED):
        return _unreadable(request, str(undecoded))
    try:
        payload = str(dumps(dict(Signature(task, request.args, request.kwargs, options_of(request)))))
        loads(payload)
    except SoftTimeLimitExceeded:
        raise  # which says nothing about the message
    except Exception as exc:  # a dead letter must be made, even if it is incomplete
        logger.warning("%s[%s] cannot be written as JSON, its dead letter cannot be retried: %r", task, request.id, exc)
        return _unreadable(request, repr(exc))
    return payload


def _unreadable(request: Any, why: str) -> str:
    """Return the payload for a message whose body cannot be written: the sender's representation. It can only be discarded."""
    shown = {name: str(request.__dict__.get(f"{name}repr") or "")[:_REPR_CHARACTERS] for name in ("args", "kwargs")}
    return json.dumps({"unreadable": why[:_REPR_CHARACTERS], **shown})


def options_of(request: Any) -> dict[str, Any]:
    """Return the options with which the message of a request can be published again, without what belongs to one delivery."""
    options = {name: value for name, value in request.as_execution_options().items() if value is not None}
    options["headers"] = {name: value for name, value in headers_of(request).items() if name not in _PASSING}
    if (priority := (request.delivery_info or {}).get("priority")) is not None:
        options["priority"] = priority
    return options


def request_of(app: Celery, dead_letter: DeadLetter) -> Context | None:
    """Return the request that the task of a dead letter's message would see; ``None`` if the message cannot be read."""
    try:
        sent = deserialized(app, dead_letter.payload)
    except Exception as exc:  # whatever the error, operators have the dead letter
        logger.debug("the message in the dead letter %s cannot be read: %r", dead_letter.id, exc)
        return None
    options = sent.options
    return Context(id=options.get("task_id"), task=sent.task, headers=options.get("headers"), called_directly=False)


def lookup_of(step: StepDefinition, request: Any) -> Lookup | None:
    """Return the lookup of the instance for a request's message, or ``None`` if it names none, or fails to."""
    try:
        check_message_id(step.name, headers_of(request).get(MESSAGE_ID))
        bound = step.arguments.bind(request.args or (), request.kwargs or {})
        return locate(step, bound, session_of(request).causation, read_address(request))
    except MessageError:
        return None
    except SoftTimeLimitExceeded:
        raise  # which says nothing about the message
    except Exception as exc:  # from a validator, say: it fails in the same way each time, and has a dead letter all the same
        logger.warning("%s[%s] cannot be correlated: %r", step.name, request.id, exc)
        return None
