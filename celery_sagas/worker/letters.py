"""The message in a dead letter: its text, and where it looks for its instance."""

import json
import logging
from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.canvas import Signature
from celery.exceptions import SoftTimeLimitExceeded
from kombu.utils.json import dumps, loads

from celery_sagas.core.steps import StepDefinition
from celery_sagas.engine.burial import locate
from celery_sagas.errors import MessageError
from celery_sagas.stores.records import DeadLetter, Lookup
from celery_sagas.worker.freeze import thawed
from celery_sagas.worker.headers import MESSAGE_ID, PUT_OFF, check_message_id, headers_of, read_address
from celery_sagas.worker.sessions import session_of

logger = logging.getLogger("celery_sagas")

#: Headers that belong to one delivery of a message, not to the message.
_PASSING = frozenset({PUT_OFF, "redelivered"})
#: Of a request whose message cannot be decoded: why not.
UNDECODED = "_celery_sagas_undecoded"
#: Of what the sender says of the arguments, so much is kept of a message that cannot be written; Celery says as much.
_REPR_CHARACTERS = 1_024


def payload_of(task: str, request: Any) -> str:
    """Return the message of a request as the JSON text of its signature.

    Args:
        task: Its name.
        request: A task's request, or what looks like one.
    """
    if undecoded := request.__dict__.get(UNDECODED):
        return _unreadable(request, str(undecoded))
    try:
        payload = str(dumps(dict(Signature(task, request.args, request.kwargs, _options_of(request)))))
        loads(payload)
    except SoftTimeLimitExceeded:
        raise  # which says nothing about the message
    except Exception as exc:  # whatever a letter lacks, there must be one
        logger.warning("%s[%s] cannot be written as JSON, its dead letter cannot be retried: %r", task, request.id, exc)
        return _unreadable(request, repr(exc))
    return payload


def _unreadable(request: Any, why: str) -> str:
    """Return what is kept of a message whose body cannot be: what its sender says of it. It can only be discarded."""
    shown = {name: str(request.__dict__.get(f"{name}repr") or "")[:_REPR_CHARACTERS] for name in ("args", "kwargs")}
    return json.dumps({"unreadable": why[:_REPR_CHARACTERS], **shown})


def request_of(app: Celery, letter: DeadLetter) -> Context | None:
    """Return what the task of a letter's message would see of its request; ``None`` if the message cannot be read."""
    try:
        sent = thawed(app, letter.payload)
    except Exception as exc:  # whatever it is, people have the letter
        logger.debug("the message in the letter %s cannot be read: %r", letter.id, exc)
        return None
    options = sent.options
    return Context(id=options.get("task_id"), task=sent.task, headers=options.get("headers"), called_directly=False)


def _options_of(request: Any) -> dict[str, Any]:
    options = {name: value for name, value in request.as_execution_options().items() if value is not None}
    options["headers"] = {name: value for name, value in headers_of(request).items() if name not in _PASSING}
    if (priority := (request.delivery_info or {}).get("priority")) is not None:
        options["priority"] = priority
    return options


def lookup_of(step: StepDefinition, request: Any) -> Lookup | None:
    """Return where the message of a request looks for its instance, or ``None`` if it names none, or fails to."""
    try:
        check_message_id(step.name, headers_of(request).get(MESSAGE_ID))
        bound = step.arguments.bind(request.args or (), request.kwargs or {})
        return locate(step, bound, session_of(request).causation, read_address(request))
    except MessageError:
        return None
    except SoftTimeLimitExceeded:
        raise  # which says nothing about the message
    except Exception as exc:  # of a validator, say: it fails in the same way each time, and has a letter all the same
        logger.warning("%s[%s] cannot be correlated: %r", step.name, request.id, exc)
        return None
