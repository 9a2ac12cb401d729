"""Operators' actions on dead letters: retry a message under a new id, put back a rejected item, or discard either."""

import logging
from typing import Any, NamedTuple

from celery import Celery
from celery.app.task import Context
from celery.canvas import Signature
from kombu.utils.json import dumps, loads

from celery_sagas.core.encoding import PROBLEM, REMEDY, UndecodedError, check_decoded
from celery_sagas.core.ids import derived_id
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.requests import UNDONE, Addressed, ReplyKind
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.dead_letters.cancellation import Cancellation
from celery_sagas.engine.dead_letters.dead_lettering import close
from celery_sagas.engine.instance import lookup_in
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, DeadLetter, Lookup
from celery_sagas.worker.failures.dead_letters import lookup_of
from celery_sagas.worker.headers import (
    DEFERRED_SINCE,
    LOOKS,
    MESSAGE_ID,
    PAUSE_LEFT,
    RETRY_OF,
    STEP_RETRIES,
    WAITED,
    answer_headers,
    read_address,
)
from celery_sagas.worker.requests.gather_task import gather_of
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.serialization import ROUTE, deserialized
from celery_sagas.worker.targets import signature_to, target_named, wired

logger = logging.getLogger("celery_sagas")

#: Counters and options that a failed message has used up, and that its retry starts without.
_SPENT = ("expires", "retries", "task_id")
#: Headers likewise.
_SPENT_HEADERS = (MESSAGE_ID, STEP_RETRIES, PAUSE_LEFT, DEFERRED_SINCE, LOOKS, WAITED)


class Retried(NamedTuple):
    """The result of retrying a dead letter; the dead letter is gone."""

    id: str = ""  #: under which its message was sent, or its item is buffered; empty if nothing was done
    reason: str = ""  #: why nothing was sent


def retry_dead_letter(runtime: Runtime, dead_letter: DeadLetter) -> Retried:
    """Send the message of a dead letter under a new id, confirmed, and remove it; put a rejected item back into its buffer.

    The id is the same however often this dead letter is retried: if it cannot be removed, a step drops the repeat. Before the
    message is sent, the journal records its failure under its first id, so that no late delivery of it is handled as well.

    Nothing is sent if the message was handled under its first id, or if its instance no longer waits for it and never will again.
    If the saga is not defined in the app, the instance cannot be looked up, and the message is sent.

    Returns:
        The result.

    Raises:
        MisuseError: The dead letter holds no message that can be sent, or an item whose id is buffered again; it is kept. So it
            is with ``task_always_eager``: the message would run here, and its failure be lost.
        PublishError: The broker did not confirm it; the dead letter is kept.
        StoreError: The dead letter is kept.
    """
    app, step = runtime.app, registry.step_named(dead_letter.task)
    if dead_letter.number:
        return _restore(runtime, dead_letter)
    again = signature_for_retry(app, dead_letter)
    if step is not None and not _close(runtime.backends.of(step.saga), step, dead_letter):
        return _in_vain(dead_letter, "was handled since, under its own id")
    if not _is_awaited(runtime, dead_letter):
        runtime.remove_dead_letter(dead_letter.id)
        return _in_vain(dead_letter, "changes nothing, since its instance does not wait for it any more")
    runtime.publisher.publish_signature(again)
    runtime.remove_dead_letter(dead_letter.id)
    return Retried(new_id_of(dead_letter))


def _restore(runtime: Runtime, dead_letter: DeadLetter) -> Retried:
    """Put a rejected item back into its buffer."""
    if not runtime.batches.aggregates.restore(runtime.rules_named(dead_letter.task), dead_letter):
        item = f"the item {dead_letter.message_id} of {dead_letter.task}"
        problem = f"{item} was not put back: its id is buffered again, or its dead letter is gone"
        raise MisuseError(problem, "Retry it when that one was flushed, or discard it")
    return Retried(dead_letter.message_id)


def _in_vain(dead_letter: DeadLetter, reason: str) -> Retried:
    logger.warning("the dead letter %s is not sent again: %s %s", dead_letter.id, dead_letter.task, reason)
    return Retried(reason=reason)


def _is_awaited(runtime: Runtime, dead_letter: DeadLetter) -> bool:
    """Return whether an instance waits for a dead letter's message, as far as it can be known here; or whether none ever did."""
    cancellation = cancellation_of(dead_letter)
    if cancellation is None:
        return True
    if gather := gather_of(request_in(dead_letter)):
        return runtime.gathering_of(gather.saga).awaited(gather) is not None
    saga = saga_in(dead_letter)
    return saga is None or cancellation.is_due(runtime.backends.of(saga).sagas)


def discard_dead_letter(runtime: Runtime, dead_letter: DeadLetter) -> bool:
    """Remove a dead letter; if its instance waits for the message, a timeout or an outcome of a request, it stops waiting.

    An undo that has failed counts as done: a message that says so is sent to the instance, which goes on with what is left. An
    outcome of a request that is undone meanwhile is sent again, since it goes to the undo, and to no step. The dead letter is
    removed last: after an interruption, discard it again.

    Returns:
        Whether an instance waited for it.

    Raises:
        PublishError: The broker did not confirm the message; the dead letter is kept.
        StoreError: The dead letter is kept.
    """
    cancellation, backend = cancellation_of(dead_letter), runtime.backends.of(saga_in(dead_letter))
    waited = cancellation is not None and cancellation.perform(backend, runtime.settings.conflict_retries)
    if cancellation is not None and not waited and cancellation.must_be_settled(backend.sagas):
        is_undo = dead_letter.task.endswith(UNDONE)
        sent = _done(runtime.app, dead_letter, cancellation.addressed) if is_undo else retry_of(runtime.app, dead_letter)
        runtime.publisher.publish_signature(sent)
        waited = True
    runtime.remove_dead_letter(dead_letter.id)
    return waited


def _done(app: Celery, dead_letter: DeadLetter, addressed: Addressed) -> Signature[Any]:
    """Return the answer to an undo, in the place of its task."""
    headers = answer_headers(addressed.instance_id, addressed.id, ReplyKind.ANSWER)
    target = target_named(app, dead_letter.task)
    return signature_to(app, target, None, headers=headers, id=derived_id(dead_letter.id, "discard"))


def signature_for_retry(app: Celery, dead_letter: DeadLetter) -> Signature[Any]:
    """Return the message of a dead letter for its retry, checked as far as it can be without a server.

    Raises:
        MisuseError: It cannot be sent.
    """
    if app.conf.task_always_eager:
        problem = "with task_always_eager nothing is sent: the message would run here, and its failure be lost"
        raise MisuseError(problem, "Retry it where that is off")
    again = retry_of(app, dead_letter)
    _check_arguments(app, dead_letter, again)
    return again


def new_id_of(dead_letter: DeadLetter) -> str:
    """Return the id under which a dead letter's message is retried."""
    return derived_id(dead_letter.id, "retry")


def retry_of(app: Celery, dead_letter: DeadLetter) -> Signature[Any]:
    """Return the message of a dead letter for its retry: with a new id, its full number of retries, and no expiry.

    A timeout keeps its address, by which its instance recognizes it. This app routes it: the old route may have been the fault.
    """
    sent = {name: value for name, value in signature_in(dead_letter).items() if name != ROUTE}
    first = _first_of(sent)
    for part in (sent, first):
        options = part["options"] = dict(part.get("options") or {})
        for name in _SPENT:
            options.pop(name, None)
        options["headers"] = {
            name: value for name, value in (options.get("headers") or {}).items() if name not in _SPENT_HEADERS
        } | {RETRY_OF: dead_letter.id}
    first["options"]["task_id"] = new_id_of(dead_letter)
    return deserialized(app, str(dumps(sent)))


def signature_in(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return the signature in a dead letter.

    Raises:
        MisuseError: It has no signature.
    """
    try:
        check_decoded(dead_letter.payload)
        sent = loads(dead_letter.payload)
    except UndecodedError as exc:
        raise MisuseError(f"the dead letter {dead_letter.id} cannot be read: {PROBLEM.removeprefix('it ')}", REMEDY) from exc
    except (ValueError, RecursionError) as exc:
        raise MisuseError(
            f"the dead letter {dead_letter.id} holds no JSON that can be read: {exc}", "It can only be discarded"
        ) from exc
    if not isinstance(sent, dict) or "task" not in sent:
        raise MisuseError(f"the dead letter {dead_letter.id} holds no message that can be sent", "It can only be discarded")
    return sent


def request_in(dead_letter: DeadLetter) -> Context:
    """Return the request of the message in a dead letter, as its task would see it.

    Raises:
        MisuseError: It holds no message.
    """
    sent = _first_of(signature_in(dead_letter))
    headers = dict((sent.get("options") or {}).get("headers") or {})
    arguments = {"args": sent.get("args"), "kwargs": sent.get("kwargs")}
    return Context(headers, headers=headers, id=dead_letter.message_id, task=dead_letter.task, called_directly=False, **arguments)


def cancellation_of(dead_letter: DeadLetter) -> Cancellation | None:
    """Return the cancellation of a dead letter's message for the instance that waits for it; ``None`` if none ever did."""
    if dead_letter.number:
        return None
    try:
        request = request_in(dead_letter)
        addressed = read_address(request)
    except (MisuseError, InvalidMessage):  # it holds no message, or an address that no instance has
        return None
    if addressed is None:
        return None
    saga, outcome = saga_in(dead_letter), wired(dead_letter.task, request.args[0]) if request.args else None
    return Cancellation(dead_letter, saga.names if saga else (dead_letter.saga,), addressed, outcome)


def instance_named_in(dead_letter: DeadLetter) -> Lookup | None:
    """Return the lookup of the instance that a dead letter's message is for; ``None`` if that is not known here."""
    step, saga = registry.step_named(dead_letter.task), saga_in(dead_letter)
    if dead_letter.number or saga is None:
        return None
    try:
        lookup = lookup_of(step, request_in(dead_letter)) if step else None
    except MisuseError:  # it holds no message
        lookup = None
    return lookup or (lookup_in(saga, KEY, dead_letter.key) if dead_letter.key else None)


def saga_in(dead_letter: DeadLetter) -> SagaDefinition | None:
    """Return the saga of a message's step, even if the step no longer exists; ``None`` if the saga is not defined here."""
    step = registry.step_named(dead_letter.task)
    return (
        step.saga if step else registry.saga_named(dead_letter.saga) or registry.saga_named(dead_letter.task.rpartition(".")[0])
    )


def _check_arguments(app: Celery, dead_letter: DeadLetter, again: Signature[Any]) -> None:
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
        raise MisuseError(
            f"the message of the dead letter {dead_letter.id} does not fit: {exc}", "It can only be discarded"
        ) from exc


def _close(backend: Backend, step: StepDefinition, dead_letter: DeadLetter) -> bool:
    """Record in the journal that the message failed; return ``False`` if it was handled."""
    lookup, named = lookup_of(step, request_in(dead_letter)), str(_first_of(signature_in(dead_letter))["task"])
    return lookup is None or close(backend, step, dead_letter, lookup, named=named)


def _first_of(sent: dict[str, Any]) -> dict[str, Any]:
    """Return the signature that is published: for a chain, that of its first task."""
    while sent.get("subtask_type") == "chain":
        sent = sent["kwargs"]["tasks"][0]
    return sent
