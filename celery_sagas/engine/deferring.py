"""Messages whose step does not run on the instance now, for its status or for a pause; and the release of deferred ones."""

from contextlib import suppress
from dataclasses import replace

from pydantic_core import to_json

from celery_sagas.core.deferred import MOST, Deferred
from celery_sagas.core.ids import derived_id, time_ordered_id
from celery_sagas.core.registry import registry
from celery_sagas.core.sending import Sending, SerializedMessage
from celery_sagas.core.state import State
from celery_sagas.core.status import IfNot
from celery_sagas.core.step import StepDefinition
from celery_sagas.engine.commit import Run, set_aside
from celery_sagas.engine.instance import context_of, pending_of
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.session import Deferral
from celery_sagas.errors import AlreadyHandled, InvalidState, TooManyDeferred, WrongStatus
from celery_sagas.stores.operations import Update
from celery_sagas.stores.ports import SagaStore
from celery_sagas.stores.records import KEY, Effects, Entry, Lookup, Outgoing, Record


def turn_away(run: Run, record: Record, state: State) -> Update:
    """Return the commit for a message whose step does not run on the instance now: it is ignored, or deferred.

    Each message to a paused instance is deferred.

    The commit compares the version, so that no message is judged by a status that changes at this moment.

    Args:
        run: The run.
        record: The instance as it was found.
        state: Its state; its pending map is without the timeout, or the request, that the message is about.

    Raises:
        WrongStatus: The policy is to raise, or the message has been deferred for long enough.
        TooManyDeferred: No more messages can wait with the instance.
    """
    step, delivery = run.step, run.delivery
    is_paused = context_of(state).pending.paused is not None
    deferral = delivery.deferral() if delivery.deferral and (is_paused or step.is_deferred) else None
    if is_paused and deferral is not None:
        return _defer(run, record, state, deferral, 0)
    if step.status.if_not is IfNot.IGNORE:
        context = context_of(state)
        release(run, state)
        return set_aside(replace(run, kind=Kind.IGNORED), record, state, context.pending)
    ends_at = deferral.since + int(step.defer_for_s * 1000) if deferral and step.defer_for_s else 0
    if deferral is None or (ends_at and ends_at <= deferral.now):
        since = deferral.since if deferral else 0
        status, key = step.status_of(state) or "", context_of(state).view.key
        raise WrongStatus(step.saga.name, key, step.name, status, step.status.expected, since and step.defer_for_s)
    return _defer(run, record, state, deferral, ends_at)


def _defer(run: Run, record: Record, state: State, deferral: Deferral, ends_at: int) -> Update:
    step, delivery, pending = run.step, run.delivery, pending_of(record)
    message, id = deferral.message(), derived_id(delivery.message_id, f"{step.name}/deferred {record.id} {record.version}")
    to = delivery.addressed
    awaited, came = (to.id, to.came) if to else ("", "")
    wake_id = derived_id(id, "wake") if ends_at else ""
    deferred = Deferred(
        delivery.message_id, message.task, deferral.since, message.message_id, message.payload, awaited, came, wake_id
    )
    pending.deferred.append(deferred)
    if len(pending.deferred) > MOST:
        raise TooManyDeferred(step.saga.name, record.key, step.name, f"{MOST} messages wait with it, and no more can")
    wake = run.terms.deferred.wake(step.saga, record.id, wake_id, ends_at) if ends_at else None
    sending = Sending(step.name, id, run.terms.serialize)  # the journal has no entry of the message itself: it will be handled
    try:
        return set_aside(replace(run, kind=Kind.DEFERRED, sending=sending), record, state, pending, wake)
    except InvalidState as exc:
        raise TooManyDeferred(step.saga.name, record.key, step.name, exc.problems[0][1]) from exc


def park(
    sagas: SagaStore,
    step: StepDefinition,
    lookup: Lookup | None,
    message_id: str,
    looks: int,
    message: SerializedMessage,
    due_at: int,
) -> None:
    """Store a message whose instance is missing, to be published again.

    Args:
        sagas: Stores it.
        step: Its step.
        lookup: The lookup of its instance.
        message_id: Its id in the journal.
        looks: How often it has looked for the instance. Delivered again, it is stored once.
        message: The message.
        due_at: When it is published; milliseconds since the epoch.

    Raises:
        StoreError: It is unknown whether it was stored; repeating the call completes it.
    """
    attempt = time_ordered_id()
    entry = Entry(
        step=step.name,
        message_id=derived_id(message_id, f"{step.name}/look {looks}"),
        attempt=attempt,
        outcome=Kind.DEFERRED.value,
        saga=step.saga.name,
        key=lookup.value if lookup is not None and lookup.property == KEY else "",
        instance_id="",
        version=0,
        detail=to_json({"reason": "missing"}).decode(),
    )
    row = Outgoing(f"{attempt}-00000", "sent", message.message_id, message.task, message.payload, due_at)
    with suppress(AlreadyHandled):
        sagas.record(Effects(entry, (row,)))


def release(run: Run, state: State) -> None:
    """Send the deferred messages with this commit that are not deferred any more once the instance is as its step has left it."""
    context = context_of(state)
    pending = context.pending
    for deferred in list(pending.deferred):
        if context.completed or not pending.awaits(deferred) or _is_admitted(run, state, deferred):
            pending.release(deferred)


def _is_admitted(run: Run, state: State, deferred: Deferred) -> bool:
    """Return whether a deferred message would be handled now."""
    step = registry.step_named(deferred.step)
    if step is None:  # newer code deferred it
        return False
    if step.status.condition is None:
        return step.admits(state, {})
    return context_of(state).ask(run.terms.deferred.is_admitted, step, state, deferred.payload)
