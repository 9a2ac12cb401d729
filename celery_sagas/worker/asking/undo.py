"""Undoing: an instance takes back what its requests have done, one after the other, and sends again what has failed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery import signature
from celery.canvas import Signature

from celery_sagas.clock import time_s
from celery_sagas.core.context import StepContext
from celery_sagas.core.correlation import check_own_key
from celery_sagas.core.delays import Backoff, Delay, checked_backoff, seconds_of
from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.answers import Failure
from celery_sagas.core.requests.requests import UNDONE, Addressed, Again, ReplyKind, Request, Target
from celery_sagas.core.requests.undo import RETRY, WITHIN_S, Undoable, Undoing
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.commit import SerializeAnswer
from celery_sagas.errors import MisuseError, UndoFailed
from celery_sagas.worker.asking.message import Receivers, ask
from celery_sagas.worker.celery_internals import current_app, routing_of
from celery_sagas.worker.headers import UNDOES, address_headers, answer_headers, serialized_target
from celery_sagas.worker.targets import check_options, signature_to, step_of, target_named, unwired, wired
from celery_sagas.worker.timeouts import due_time, waiting

logger = logging.getLogger("celery_sagas")

#: Names the message that reports the failure of the last attempt to undo something.
_GIVEN_UP = "given up"


def compensate(
    context: StepContext,
    saga: SagaDefinition,
    then: Any,
    *,
    parallel: bool,
    retry: Backoff,
    within: Delay,
) -> None:
    """Begin to undo what the requests of an instance have done.

    Raises:
        TypeError: ``then``, ``retry`` or ``within`` has a wrong type.
        ValueError: ``retry`` or ``within`` is out of its bounds.
        MisuseError: The step has completed the instance, or ``then`` does not belong to the saga.
        InvalidMessage: Its arguments do not fit.
    """
    if context.completed:
        raise MisuseError("compensate() was called after complete()", "Complete it in the step that compensate(then=) names")
    backoff, seconds = checked_backoff("retry", retry), seconds_of("within", within)
    if not seconds > 0:
        raise ValueError(f"within={within!r} is over before it begins: give each undo some time")
    due_time(seconds)  # an undo is sent much later, where nobody could mend it
    target = None if then is None else _checked_then(context, saga, then)
    pending = context.pending
    awaited = [id for id, request in reversed(pending.all_requests().items()) if _take_over(context, request)]
    pending.withdraw_then()  # of a compensation that has just ended
    pending.undo.begin(Undoing([], target, parallel, backoff, seconds), awaited)
    context.compensates = True
    _go_on(context, saga)


def _checked_then(context: StepContext, saga: SagaDefinition, then: Any) -> Target:
    """Return the step with which a compensation ends; it is given nothing but its own arguments."""
    step, signature = step_of(saga, then, "compensate(then=)")
    if signature is not None:
        check_options(signature, "compensate(then=)")
    args, kwargs = (signature.args or (), signature.kwargs or {}) if signature is not None else ((), {})
    encoded, named = step.arguments.encode(tuple(args), kwargs)
    check_own_key(step.rule, step.arguments.validate(step.arguments.bind(encoded, named)), saga.name, context.view.key)
    return serialized_target(Target(step.name, tuple(encoded), named, takes=False, options=routing_of(current_app(), step.name)))


def cancel(context: StepContext, id: str) -> bool:
    """Stop waiting for a request; return whether it was waited for."""
    if not isinstance(id, str):
        raise TypeError(f"cancel() takes the id that send() or gather() has returned, not {type(id).__name__}")
    requests = context.pending.all_requests().values()
    firsts = {request.first for request in requests if id in (request.id, request.first)}
    found = [request for request in requests if request.first in firsts]
    was_open = False
    for request in found:
        if request.undoes or request.is_undone:
            continue
        was_open |= not request.has_timed_out
        if request.undo is not None:
            _take_over(context, request)
        else:
            if not _withdraw(context, request):
                context.cancelled[request.id] = request
                context.pending.cancelled += request.member_rows  # a gather's: some may not be published yet
            context.pending.remove(request)
    return was_open


def _take_over(context: StepContext, request: Request) -> bool:
    """Have the outcome of a request go to its undo; return whether that has to be waited for."""
    pending = context.pending
    if request.undo is None or request.is_undone:
        return request.is_undone and not request.has_timed_out  # it was cancelled, or is waited for already
    if request.has_timed_out:
        pending.change(replace(request, is_undone=True))
        return False
    is_new = request.id in pending.new_requests
    if _withdraw(context, request):
        pending.remove(request)
        if not is_new:  # a relay may have sent it a moment ago
            pending.requests[request.id] = replace(request, has_timed_out=True, row="", sent_row="", is_undone=True)
        return False
    if not request.undo.takes:  # else only an answer says what was done: also of a run whose process has died
        context.cancelled[request.id] = request
    pending.change(replace(request, is_undone=True))
    return True


def _withdraw(context: StepContext, request: Request) -> bool:
    """Remove the message of a request that is not due yet; return whether there was one."""
    if request.id in context.pending.new_requests:
        ids, sending = set(request.task_ids), context.require_sending("cancel")
        sending.messages[:] = [message for message in sending.messages if message.answer_id not in ids]
        return True
    if not request.sent_row or request.sent_at <= time_s() * 1000:
        return False
    context.pending.cancelled.append(request.sent_row)
    return True


@dataclass(frozen=True)
class UndoOutcomes:
    """What the library itself does with the outcomes of requests; see ``engine.commit.Outcomes``."""

    answer: SerializeAnswer

    def note(self, context: StepContext, request: Request, came: str, value: Any) -> None:
        """Keep what an outcome, which a step handles, has made undoable."""
        context.pending.undo.note(request, came, wired(request.task, value))

    def settle(self, saga: SagaDefinition, context: StepContext, request: Request, addressed: Addressed, value: Any) -> None:
        """Handle an outcome that no step handles: of an undo, of a request that is undone, or of one that is sent again."""
        pending, came = context.pending, addressed.came
        pending.about = {"request": request.id, "came": came} | ({"undoes": request.undoes} if request.undoes else {})
        if request.undoes:
            _end_undo(context, saga, request, came, value)
        elif request.is_undone:
            pending.end_request(request, came)
            for undoable in pending.undo.receive(request, came, wired(request.task, value)):
                _send_undo(context, saga, undoable)
        else:
            pending.end_request(request, came)
            pending.undo.note(request, came, None)
            _send_again(context, saga, request)
        _go_on(context, saga)

    def hold_answer(self, context: StepContext, asked_by: Mapping[str, Any], value: Any) -> None:
        """Keep the answer of a step that compensates until everything is undone."""
        message, undoing = self.answer(asked_by, value), context.pending.undo.undoing
        if message is not None and undoing is not None:
            undoing.answers.append(message)


def _end_undo(context: StepContext, saga: SagaDefinition, request: Request, came: str, value: Any) -> None:
    """Handle the outcome of an undo: it is done, tried again, or has failed for good."""
    pending, again = context.pending, request.again
    assert again is not None, "an undo can be tried again"  # noqa: S101
    if came == ReplyKind.ANSWER:
        pending.remove(request)
    elif again.is_left:
        pending.remove(request)
        _send_undo_again(context, saga, request, again._replace(number=again.number + 1))
    elif again.number == again.retry.times:
        pending.remove(request)
        pending.requests[request.id] = replace(request, row="", again=again._replace(number=again.number + 1))
        _give_up(context, saga, request, value)
    elif context.view.message.id == derived_id(request.id, _GIVEN_UP):
        raise UndoFailed(saga.name, context.view.key, request.task, again.number, _shown(value))
    elif context.view.message.id not in [derived_id(request.id, each) for each in (ReplyKind.FAILURE, ReplyKind.DEADLINE)]:
        pending.remove(request)  # an operator has retried its dead letter
        _send_undo_again(context, saga, request, again._replace(number=0))


def _shown(failure: Any) -> str:
    read = Failure.model_validate(failure)
    return f"{read.error}: {read.text}" if read.error else read.text


def _give_up(context: StepContext, saga: SagaDefinition, request: Request, failure: Any) -> None:
    """Send the message that becomes the dead letter of an undo: it fails, and the undo stays open until it is retried."""
    headers, sending = answer_headers(context.view.id, request.id, ReplyKind.FAILURE), context.require_sending("compensate")
    sent = signature_to(current_app(), _undone(saga), failure, headers=headers)
    sending.messages.append(sending.serialize(sent, lambda: derived_id(request.id, _GIVEN_UP)))


def _undone(saga: SagaDefinition) -> Target:
    return target_named(current_app(), f"{saga.name}.{UNDONE}")


def _send_undo(context: StepContext, saga: SagaDefinition, undoable: Undoable) -> None:
    """Send the task that undoes a piece of work, as a request of the instance."""
    undoing, task = context.pending.undo.undoing, undoable.task
    assert task is not None, "its outcome is known"  # noqa: S101
    retry, within_s = (undoing.retry, undoing.within_s) if undoing else (RETRY, WITHIN_S)
    again = Again({"undo": task.to_json()}, retry, within_s)
    _send_undo_again(context, saga, Request("", task.task, "", undoes=undoable.request), again)


def _send_undo_again(context: StepContext, saga: SagaDefinition, request: Request, again: Again) -> None:
    to = _undone(saga)
    _ask_again(context, saga, replace(request, then=to.task, otherwise=to.task), again, Receivers(to, to))


def _send_again(context: StepContext, saga: SagaDefinition, request: Request) -> None:
    """Send a request again that has failed, after a pause."""
    again = request.again
    assert again is not None, "it can be sent again"  # noqa: S101
    again = again._replace(number=again.number + 1, first=request.first)
    assert again.to_then is not None, "its answer goes to a step"  # noqa: S101
    _ask_again(context, saga, request, again, Receivers(again.to_then, again.to_otherwise, again.to_progress))


def _ask_again(context: StepContext, saga: SagaDefinition, request: Request, again: Again, to: Receivers) -> None:
    id = context.require_sending("send").next_id()
    pause_s = again.retry.pause_s(again.number) if again.number else 0.0
    due_at = waiting(due_time(pause_s)) if pause_s else 0
    deadline = due_time(again.within_s, since=due_at or None) if again.within_s else 0
    message = _message_of(request, again)
    asked = replace(request, id=id, row="", at=deadline, sent_row="", sent_at=due_at, again=again)
    ask(context, saga, message, asked, to, due_at or None, [id])


def _message_of(request: Request, again: Again) -> "Signature[Any]":
    """Return what is sent again: what ``send`` was given, or the task of an undo."""
    app, task = current_app(), Target.from_json(again.message.get("undo"))
    if task is None:
        return signature(unwired(again.message), app=app)
    options = {**task.options, "headers": {UNDOES: request.undoes}}
    return Signature(task.task, unwired(list(task.args)), unwired(dict(task.kwargs)), options, app=app, immutable=True)


def _go_on(context: StepContext, saga: SagaDefinition) -> None:
    """Send what can be undone next, or end the compensation."""
    pending, undo = context.pending, context.pending.undo
    if undo.undoing is not None and undo.undoing.queue:  # perhaps since the outcome of an overdue request came
        pending.withdraw_then()
    open_requests = {id: request for id, request in pending.all_requests().items() if not request.has_timed_out}
    for undoable in undo.next(open_requests, is_busy=pending.undoes > 0):
        _send_undo(context, saga, undoable)
    undoing = undo.undoing
    if undoing is None or undoing.then_id or undoing.queue or pending.undoes:
        return
    context.compensated = True
    context.require_sending("compensate").messages.extend(undoing.answers)
    undoing.answers = []
    if undoing.then is None:
        undo.undoing = None
    else:
        _send_then(context, undoing.then)


def _send_then(context: StepContext, then: Target) -> None:
    """Send the message with which a compensation ends, to be handled by this very instance."""
    sending = context.require_sending("compensate")
    id = sending.next_id()
    sent = signature_to(current_app(), then, headers=address_headers(context.view.id, id))
    context.pending.send_then(sending.serialize(sent, lambda: id))
