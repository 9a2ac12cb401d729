"""Dead-lettering: a message that has failed permanently becomes a dead letter, and is not handled again."""

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from celery_sagas.core.ids import derived_id
from celery_sagas.core.names import storable
from celery_sagas.core.requests.requests import Addressed
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.instance import lookup_in
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.results import QUESTION
from celery_sagas.engine.unit_of_work import correlate
from celery_sagas.errors import AlreadyHandled, Retry, StoreError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, DeadLetter, Effects, Entry, Found, Handling, Lookup

logger = logging.getLogger("celery_sagas")

TEXT_CHARACTERS = 2_000
#: The end of a traceback is kept, which shows what failed.
TRACEBACK_CHARACTERS = 20_000
_NAME_CHARACTERS = 255


def dead_letter_id_of(task: str, message_id: str) -> str:
    """Return the id of the dead letter of a message: the same for each delivery, whatever failed."""
    return derived_id(storable(message_id, sys.maxsize), f"{storable(task, _NAME_CHARACTERS)}/dead letter")


def dead_letter_of(task: str, message_id: str, saga: str, error: BaseException, payload: str) -> DeadLetter:
    """Return the dead letter of a message.

    Args:
        task: The task's name; for a step its present one, even if the message uses a former name.
        message_id: The message's id in the journal.
        saga: The stored name of the saga, or an empty string.
        error: The error with which it failed.
        payload: The message, as JSON text.
    """
    return DeadLetter(
        id=dead_letter_id_of(task, message_id),
        task=storable(task, _NAME_CHARACTERS),
        message_id=storable(message_id, _NAME_CHARACTERS),
        saga=saga,
        key="",
        error=storable(type(error).__name__, _NAME_CHARACTERS),
        text=storable(text_of(error), TEXT_CHARACTERS),
        traceback=_traceback_of(error),
        payload=payload,
    )


def locate(
    step: StepDefinition, bound: Mapping[str, Any], causation: Mapping[str, str], addressed: Addressed | None = None
) -> Lookup:
    """Return the lookup of a message's instance, and of its own entry in the journal.

    Raises:
        MessageError: It does not fit, or names no instance: it fails in the same way each time.
    """
    address, _ = correlate(step, bound, causation, addressed)
    return lookup_in(step.saga, address.property, address.text)


def keep_dead_letter(
    backend: Backend,
    step: StepDefinition,
    dead_letter: DeadLetter,
    lookup: Lookup | None,
    *,
    named: str = "",
    question: str = "",
) -> DeadLetter | None:
    """Store a dead letter, and note in the journal that its message failed: a redelivery of the message does nothing.

    The dead letter is stored first. A process that dies between the two leaves an unacknowledged message, which is
    dead-lettered again or handled after all. A run that is still active and commits first wins: then there is no dead letter.

    A message has a dead letter without a journal entry if it names no instance, or if its instance's stored state is permanently
    unreadable: redelivered, it fails in the same way, and remains one dead letter.

    Args:
        backend: Stores both.
        step: The message's step.
        dead_letter: The dead letter.
        lookup: The message's lookup; ``None`` if it names no instance.
        named: The name of the step in the message, if that is a former one: old code looks under it.
        question: What stands for the arguments of the message, if somebody awaits its result.

    Returns:
        The dead letter, or ``None`` if the message was handled or dead-lettered before.

    Raises:
        StoreError: It is unknown what was written; repeating the call completes it.
    """
    if lookup is None:
        add_dead_letter(backend, dead_letter)
        return dead_letter
    found = _find(backend, step, dead_letter, lookup)
    if found is not None and found.handled is not None:
        # an interrupted call may have left the dead letter of a message that was handled after all
        close(backend, step, dead_letter, lookup, found)
        return None
    dead_letter = dead_letter._replace(key=_key_of(lookup, found))
    add_dead_letter(backend, dead_letter)
    is_failed = found is None or close(backend, step, dead_letter, lookup, found, named=named, question=question)
    return dead_letter if is_failed else None


def close(
    backend: Backend,
    step: StepDefinition,
    dead_letter: DeadLetter,
    lookup: Lookup,
    found: Found | None = None,
    *,
    named: str = "",
    question: str = "",
) -> bool:
    """Note in the journal that the message of a dead letter failed, unless the entry exists or cannot be located.

    Returns:
        Whether it failed, as far as can be determined; if it was handled, its dead letter is removed.
    """
    found = found or _find(backend, step, dead_letter, lookup)
    if found is not None and found.handled is None:
        try:
            backend.sagas.record(Effects(_entry(step, dead_letter, found, named, question)))
        except AlreadyHandled:
            found = _find(backend, step, dead_letter, lookup)
    if found is None or found.handled is None or found.handled.outcome == Kind.FAILED:
        return True
    backend.dead.remove(dead_letter.id)
    return False


def add_dead_letter(backend: Backend, dead_letter: DeadLetter) -> None:
    """Store a dead letter; if the store refuses it, because of its size for example, store it without its message."""
    try:
        backend.dead.add(dead_letter)
    except StoreError as exc:
        if exc.retry is not Retry.NEVER:
            raise
        logger.warning(
            "%s[%s] is kept without its message, and cannot be retried: %s", dead_letter.task, dead_letter.message_id, exc
        )
        backend.dead.add(
            dead_letter._replace(payload=to_json({"unreadable": f"the store refused it: {type(exc).__name__}"}).decode())
        )


def _find(backend: Backend, step: StepDefinition, dead_letter: DeadLetter, lookup: Lookup) -> Found | None:
    """Find the instance of a message; ``None`` if it is permanently unreadable."""
    try:
        return backend.sagas.find(lookup, Handling(step.names, dead_letter.message_id))
    except StoreError as exc:
        if exc.retry is not Retry.NEVER:
            raise
        logger.warning("%s[%s] has no entry in the journal: %s", dead_letter.task, dead_letter.message_id, exc)
        return None


def _key_of(lookup: Lookup, found: Found | None) -> str:
    if found is not None and found.record is not None:
        return found.record.key
    return lookup.value if lookup.property == KEY else ""


def _entry(step: StepDefinition, dead_letter: DeadLetter, found: Found, named: str, question: str) -> Entry:
    asked = {QUESTION: question} if question else {}
    return Entry(
        step=named or step.name,
        message_id=dead_letter.message_id,
        attempt=found.new_id,
        outcome=Kind.FAILED.value,
        saga=step.saga.name,
        key=dead_letter.key,
        instance_id=found.record.id if found.record else "",
        version=found.record.version if found.record else 0,
        detail=to_json({"error": dead_letter.error, "dead_letter": dead_letter.id, **asked}).decode(),
    )


def text_of(error: BaseException) -> str:
    """Return an error's text; some third-party classes cannot produce one."""
    try:
        return str(error)
    except Exception as exc:
        return f"its text cannot be read: {type(exc).__name__}"


def _traceback_of(error: BaseException) -> str:
    text = "".join(traceback.format_exception(error))
    return storable(text[-TRACEBACK_CHARACTERS:], sys.maxsize)[-TRACEBACK_CHARACTERS:]
