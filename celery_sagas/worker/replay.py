"""Retrying a dead letter: its message is sent once more, under a new id, as an operator decides."""

from typing import Any

from celery import Celery
from celery.app.task import Context
from celery.canvas import Signature
from kombu.utils.json import dumps, loads

from celery_sagas.core.ids import derived_id
from celery_sagas.core.registry import registry
from celery_sagas.core.steps import StepDefinition
from celery_sagas.engine.burial import close
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.stores.records import DeadLetter
from celery_sagas.worker.freeze import thawed
from celery_sagas.worker.headers import MESSAGE_ID
from celery_sagas.worker.letters import lookup_of
from celery_sagas.worker.runtime import runtime_of

#: What a message that failed has used up, and its retry begins without.
_SPENT = ("expires", "retries", "task_id")


def retry_letter(app: Celery, letter: DeadLetter) -> str:
    """Send the message of a letter under a new id, confirmed, and remove the letter.

    The id is the same however often this letter is retried: if the letter cannot be removed, a step drops the repeat. Before it
    is sent, the journal says that the message under its first id has failed, so that no late delivery of it is handled as well.

    Returns:
        The new id; empty if the message was handled under its first one, and nothing was sent.

    Raises:
        MisuseError: The letter holds no message that can be sent.
        PublishError: The broker did not confirm it; the letter is kept.
        StoreError: The letter is kept.
    """
    runtime, step = runtime_of(app), registry.step_named(letter.task)
    again = retry_of(app, letter)
    _check_arguments(app, letter, again)
    if step is not None and not _close(app, step, letter):
        return ""
    runtime.publisher.publish_signature(again)
    runtime.backend.dead.remove(letter.id)
    return new_id_of(letter)


def new_id_of(letter: DeadLetter) -> str:
    """Return the id under which a letter's message is retried."""
    return derived_id(letter.id, "retry")


def retry_of(app: Celery, letter: DeadLetter) -> Signature[Any]:
    """Return the message of a letter as it is retried: with a new id, all of its retries, and no end.

    A timeout keeps its address, by which its instance knows it.
    """
    sent = signature_in(letter)
    first = _first_of(sent)
    for part in (sent, first):
        options = part["options"] = dict(part.get("options") or {})
        for name in _SPENT:
            options.pop(name, None)
        options["headers"] = {name: value for name, value in (options.get("headers") or {}).items() if name != MESSAGE_ID}
    first["options"]["task_id"] = new_id_of(letter)
    return thawed(app, str(dumps(sent)))


def signature_in(letter: DeadLetter) -> dict[str, Any]:
    """Return the signature in a letter.

    Raises:
        MisuseError: There is none.
    """
    try:
        sent = loads(letter.payload)
    except ValueError as exc:
        raise MisuseError(f"the dead letter {letter.id} holds no JSON: {exc}", "It can only be discarded") from exc
    if not isinstance(sent, dict) or "task" not in sent:
        raise MisuseError(f"the dead letter {letter.id} holds no message that can be sent", "It can only be discarded")
    return sent


def request_in(letter: DeadLetter, task: str) -> Context:
    """Return the request of the message in a letter, as a task of this name would have it.

    Raises:
        MisuseError: There is no message.
    """
    sent = _first_of(signature_in(letter))
    headers = dict((sent.get("options") or {}).get("headers") or {})
    arguments = {"args": sent.get("args"), "kwargs": sent.get("kwargs")}
    return Context(headers, headers=headers, id=letter.message_id, task=task, called_directly=False, **arguments)


def _check_arguments(app: Celery, letter: DeadLetter, again: Signature[Any]) -> None:
    """Refuse what Celery would refuse to publish: arguments that do not fit the task."""
    task: Any = app.tasks.get(str(again.task))
    if task is None or not task.typing:
        return
    try:
        task.__header__(*(again.args or ()), **(again.kwargs or {}))
        if again.task in registry.aggregators:
            items = registry.aggregators[str(again.task)].items
            items.encode(items.value_of(again.args or (), again.kwargs or {}))
    except (TypeError, InvalidMessage) as exc:
        raise MisuseError(f"the message of the dead letter {letter.id} does not fit: {exc}", "It can only be discarded") from exc


def _close(app: Celery, step: StepDefinition, letter: DeadLetter) -> bool:
    """Have the journal say that the message failed; return ``False`` if it was handled."""
    lookup, named = lookup_of(step, request_in(letter, step.name)), str(_first_of(signature_in(letter))["task"])
    return lookup is None or close(runtime_of(app).backend, step, letter, lookup, named=named)


def _first_of(sent: dict[str, Any]) -> dict[str, Any]:
    """Return the signature that is published: of a chain, that of its first task."""
    while sent.get("subtask_type") == "chain":
        sent = sent["kwargs"]["tasks"][0]
    return sent
