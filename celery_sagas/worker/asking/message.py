"""Asking: the message of a request, with the destination of its outcome, and what the instance notes of it."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from celery import Celery
from celery.canvas import Signature, _chain

from celery_sagas.core.context import StepContext
from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.answers import Failure
from celery_sagas.core.requests.requests import ReplyKind, Request, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import answer_headers, answer_headers_to, return_address_headers
from celery_sagas.worker.targets import signature_to
from celery_sagas.worker.timeouts import due_later


class Receivers(NamedTuple):
    """The steps that receive what comes of a request."""

    then: Target  #: the answer
    otherwise: Target | None = None  #: a failure
    progress: Target | None = None  #: interim answers


def ask(
    context: StepContext,
    saga: SagaDefinition,
    sent: "Signature[Any]",
    asked: Request,
    to: Receivers,
    due_at: int | None,
    ids: Sequence[str],
) -> None:
    """Send the message of a request, and record that its answer is awaited.

    Args:
        context: Of the step that sends it.
        saga: The saga that receives the outcome.
        sent: The message.
        asked: The request.
        to: The steps that receive what comes of it.
        due_at: When it is sent; milliseconds since the epoch. ``None`` leaves it to the message.
        ids: Of the message; of a chain, of each of its tasks.
    """
    app, sending = current_app(), context.require_sending("send")
    address = ReturnAddress(saga.name, context.view.id, asked.id, *to)
    sending.send(asking(app, sent, address, derived_id(asked.id, ReplyKind.ANSWER), asked.at), due_at, ids)
    if sent_at := sending.messages[-1].due_at:
        asked = replace(asked, sent_at=sent_at)
    over = None
    if asked.at and to.otherwise:
        failure = Failure(kind="deadline", task=asked.task, task_id=asked.id, text="nothing had come when the time was over")
        over = deadline_message(context, asked, to.otherwise, failure.__json__())
    context.pending.new_requests[asked.id] = asked, over


def asking(app: Celery, message: "Signature[Any]", address: ReturnAddress, answer_id: str, deadline: int) -> "Signature[Any]":
    """Return a message with its answer's destination: in Celery's ``link``, which every worker supports, and in a header.

    Every task of a chain reports its failure; only the last one answers.

    Args:
        app: The app.
        message: The message to send.
        address: The destination of its outcome.
        answer_id: The id of the answer's message.
        deadline: When it need not be begun any more; milliseconds since the epoch, 0: never.

    Raises:
        InvalidMessage: The address is too large.
    """
    sent = message.clone()
    members = [member.clone() for member in sent.tasks] if isinstance(sent, _chain) else [sent]
    for member in members:
        if deadline and member.options.get("expires") is None:
            member.options["expires"] = datetime.fromtimestamp(deadline / 1000, UTC).isoformat()
        if address.otherwise:
            _add_return_address(member, address.of_failures)
    _add_return_address(members[-1], address)
    if address.then:
        headers = answer_headers_to(address.then.task, address)
        link: Any = signature_to(app, address.then, id=answer_id, headers=headers)
        members[-1].link(_Link(link))
    if isinstance(sent, _chain):
        sent["kwargs"] = {**sent.kwargs, "tasks": members}
    return sent


def deadline_message(context: StepContext, asked: Request, to: Target, outcome: Any) -> SerializedMessage:
    """Return the message that reports the deadline of a request, and ends with its instance."""
    headers = answer_headers(context.view.id, asked.id, ReplyKind.DEADLINE)
    sent = signature_to(current_app(), to, outcome, headers=headers)
    message = context.require_sending("send").serialize(sent, lambda: derived_id(asked.id, ReplyKind.DEADLINE))
    return due_later(message, asked.at, asked.otherwise)


class _Link(Signature):
    """A signature that follows a task. It is never changed, and so need not be copied with each copy of the task's signature."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _add_return_address(member: "Signature[Any]", address: ReturnAddress) -> None:
    headers = return_address_headers(str(member.task), address)
    member.options["headers"] = {**(member.options.get("headers") or {}), **headers}
