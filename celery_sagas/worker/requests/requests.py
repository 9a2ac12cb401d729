"""Requests: a message is sent together with the steps that receive its outcome; and the answer to one."""

import logging
from datetime import UTC, datetime
from typing import Any, Self

from celery import Celery
from celery.canvas import Signature, _chain

from celery_sagas.core.context import StepContext
from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.answers import ANSWER, FAILURE, Failure
from celery_sagas.core.requests.requests import ANSWERED, ReplyKind, Request, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.commit import SerializeAnswer
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import ADDRESS, answer_headers, answer_headers_to, return_address_headers
from celery_sagas.worker.serialization import checked
from celery_sagas.worker.targets import signature_to, target_named, target_of
from celery_sagas.worker.timeouts import Delay, due_later, due_time, seconds_of

logger = logging.getLogger("celery_sagas")


def request(
    context: StepContext,
    saga: SagaDefinition,
    message: object,
    then: Any | None,
    otherwise: Any | None,
    within: Delay | None = None,
    due_at: int | None = None,
) -> str:
    """Send a message, and record that its answer is awaited; return its id.

    Raises:
        TypeError: ``within`` is given without ``otherwise``; or the message, or a step, has a wrong type.
        ValueError: The deadline is over before it begins, or beyond all dates.
        MisuseError: A step does not belong to this saga.
        InvalidMessage: A step has no parameter for the outcome, or does not accept it.
    """
    app, sending = current_app(), context.require_sending("send")
    sent = checked(message)
    members = members_of(sent)
    deadline = deadline_of(sent, members, otherwise, within, due_at)
    ids = [sending.next_id() for _ in members]
    to_then = target_of(saga, then, ANSWER) if then is not None else target_named(app, f"{saga.name}.{ANSWERED}")
    to_otherwise = target_of(saga, otherwise, FAILURE) if otherwise is not None else None
    address = ReturnAddress(saga.name, context.view.id, ids[-1], to_then, to_otherwise)
    if not deadline:
        warn_of_early_acknowledgement(app, members)
    asked = Request(ids[-1], str(members[-1].task), to_then.task, to_otherwise.task if to_otherwise else "", at=deadline)
    sending.send(asking(app, sent, address, derived_id(asked.id, ReplyKind.ANSWER), deadline), due_at, ids)
    over = None
    if deadline and to_otherwise:
        failure = Failure(kind="deadline", task=asked.task, task_id=asked.id, text="nothing had come when the time was over")
        over = deadline_message(context, asked, to_otherwise, failure.__json__())
    context.pending.new_requests[asked.id] = asked, over
    return asked.id


def members_of(message: "Signature[Any]") -> list["Signature[Any]"]:
    """Return the tasks of a chain, or the single task of another signature."""
    checked(message)
    return list(message.tasks) if isinstance(message, _chain) else [message]


def deadline_of(
    message: "Signature[Any]",
    members: list["Signature[Any]"],
    otherwise: Any | None,
    within: Delay | None,
    due_at: int | None = None,
) -> int:
    """Return when an answer comes too late, in milliseconds since the epoch; 0: never.

    Raises:
        TypeError: No step would be notified; or the message has a due time of its own.
        ValueError: It is over before it begins, or beyond all dates.
    """
    if within is None:
        return 0
    if otherwise is None:
        raise TypeError("within= needs otherwise=: name the step that is told when nothing has come")
    if any(part.options.get(name) is not None for name in ("countdown", "eta") for part in (message, *members)):
        raise TypeError("within= was given, and a signature with a countdown or eta: use after=, from which the time counts")
    seconds = seconds_of("within", within)
    if seconds <= 0:
        raise ValueError(f"within={within!r} is over before it begins: give the answer some time")
    return due_time(seconds, since=due_at or None)


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
            _add_return_address(member, address._replace(then=None))
    _add_return_address(members[-1], address)
    if address.then:
        headers = answer_headers_to(address.then.task, address)
        link: Any = signature_to(app, address.then, id=answer_id, headers=headers)
        members[-1].link(_Link(link))
    if isinstance(sent, _chain):
        sent["kwargs"] = {**sent.kwargs, "tasks": members}
    return sent


class _Link(Signature):
    """A signature that follows a task. It is never changed, and so need not be copied with each copy of the task's signature."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _add_return_address(member: "Signature[Any]", address: ReturnAddress) -> None:
    headers = return_address_headers(str(member.task), address)
    member.options["headers"] = {**(member.options.get("headers") or {}), **headers}


def forget_link(request: Any, answered: str) -> None:
    """Remove the answer to a request from the messages that follow a step: its commit sends the answer."""
    request.callbacks = [link for link in request.callbacks or () if _request_of(link) != answered]


def is_asked(request: Any) -> bool:
    """Return whether a message that follows a task answers a request."""
    return any(_request_of(link) is not None for link in request.callbacks or ())


def take_links(request: Any) -> list[Any]:
    """Remove the messages that answer requests from those that follow a task, and return them."""
    links = [link for link in request.callbacks or () if _request_of(link) is not None]
    request.callbacks = [link for link in request.callbacks or () if _request_of(link) is None]
    return links


def _request_of(link: Any) -> object:
    address = ((link.get("options") or {}).get("headers") or {}).get(ADDRESS)
    return address.get("request") if isinstance(address, dict) else None


def reply(context: StepContext, answer: SerializeAnswer, value: object) -> bool:
    """Send the answer to the message that started an instance; return whether that message waits for one."""
    pending, sending = context.pending, context.require_sending("reply")
    message = answer(pending.requester, value) if pending.requester else None
    if message is None:
        return False
    sending.messages.append(message)
    pending.requester = None
    return True


def deadline_message(context: StepContext, asked: Request, to: Target, outcome: Any) -> SerializedMessage:
    """Return the message that reports the deadline of a request, and ends with its instance."""
    headers = answer_headers(context.view.id, asked.id, ReplyKind.DEADLINE)
    sent = signature_to(current_app(), to, outcome, headers=headers)
    message = context.require_sending("send").serialize(sent, lambda: derived_id(asked.id, ReplyKind.DEADLINE))
    return due_later(message, asked.at, asked.otherwise)


def warn_of_early_acknowledgement(app: Celery, members: "list[Signature[Any]]") -> None:
    """Warn, once for each task, that an answer may never come: a message that is acknowledged early is lost with its worker."""
    for name in {str(member.task) for member in members} - _told:
        task: Any = app.tasks.get(name)
        if task is not None and not task.acks_late:
            _told.add(name)
            logger.warning(
                "%s is asked without within=, and is not acks_late: if its worker is lost, nothing comes of it. "
                "Give send() within= and otherwise=, or the task acks_late=True",
                name,
            )


_told: set[str] = set()
