"""Sending: messages together with the steps that receive their outcomes, one by one or gathered; and the reply to a request."""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Self

from celery import Celery
from celery.canvas import Signature, _chain

from celery_sagas.core.context import StepContext
from celery_sagas.core.delays import Delay, seconds_of
from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.answers import ANSWER, FAILURE, GATHERED, Failure
from celery_sagas.core.requests.requests import ANSWERED, GATHER, ReplyKind, Request, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import answer_headers, answer_headers_to, return_address_headers, serialized_target
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.serialization import checked
from celery_sagas.worker.targets import signature_to, target_named, target_of
from celery_sagas.worker.timeouts import due_later, due_time

logger = logging.getLogger("celery_sagas")

#: The maximum number of members of a gather: one commit sends no more messages.
MEMBERS = 1_000


def request(
    context: StepContext,
    saga: SagaDefinition,
    message: object,
    then: Any | None,
    otherwise: Any | None,
    within: Delay | None,
    due_at: int | None,
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
    members = _members_of(sent)
    if within is not None and _is_delayed(sent, members):
        raise TypeError("within= was given, and a signature with a countdown or eta: use after=, from which the time counts")
    deadline = _deadline(otherwise, within, due_at)
    ids = [sending.next_id() for _ in members]
    to_then = target_of(saga, then, ANSWER) if then is not None else target_named(app, f"{saga.name}.{ANSWERED}")
    to_otherwise = target_of(saga, otherwise, FAILURE) if otherwise is not None else None
    address = ReturnAddress(saga.name, context.view.id, ids[-1], to_then, to_otherwise)
    if not deadline:
        _warn_of_early_acknowledgement(app, members)
    asked = Request(ids[-1], str(members[-1].task), to_then.task, to_otherwise.task if to_otherwise else "", at=deadline)
    sending.send(_asking(app, sent, address, derived_id(asked.id, ReplyKind.ANSWER), deadline), due_at, ids)
    over = None
    if deadline and to_otherwise:
        failure = Failure(kind="deadline", task=asked.task, task_id=asked.id, text="nothing had come when the time was over")
        over = _deadline_message(context, asked, to_otherwise, failure.__json__())
    context.pending.new_requests[asked.id] = asked, over
    return asked.id


def gather(
    context: StepContext,
    saga: SagaDefinition,
    signatures: Iterable[Any],
    then: Any,
    otherwise: Any,
    at_least: int | None,
    within: Delay | None,
) -> str:
    """Send messages, and record that their answers are awaited; return the request's id.

    Raises:
        TypeError: A member, or a step, has a wrong type; or ``within`` or ``at_least`` is given without ``otherwise``.
        ValueError: There are too few or too many members, or ``at_least`` is not between 1 and their number.
        MisuseError: A step does not belong to this saga.
        InvalidMessage: A step has no parameter for the outcomes, or does not accept them; or a member cannot be sent.
        ConfigurationError: The backend collects no answers.
    """
    sending = context.require_sending("gather")
    if not context.collects:  # nothing of it is sent
        runtime_of(current_app()).gathering.require()
    members = _checked_members(signatures)
    needed = _checked_number(at_least, len(members), otherwise)
    if within is not None:
        _check_times(members)
    deadline = _deadline(otherwise, within)
    to_then = serialized_target(target_of(saga, then, GATHERED))
    to_otherwise = serialized_target(target_of(saga, otherwise, GATHERED)) if otherwise is not None else None
    asked = Request(
        sending.next_id(),
        GATHER,
        to_then.task,
        to_otherwise.task if to_otherwise else "",
        at=deadline,
        members=len(members),
        at_least=needed,
        to_then=to_then,
        to_otherwise=to_otherwise,
    )
    if not deadline:
        for _, tasks in members:
            _warn_of_early_acknowledgement(current_app(), tasks)
    sent = [_member(context, saga, asked, position, *member) for position, member in enumerate(members)]
    over = _deadline_message(context, asked, _collector(saga, asked), None) if deadline else None
    sending.messages += sent
    context.pending.new_requests[asked.id] = asked, over
    return asked.id


def reply(context: StepContext, value: object) -> bool:
    """Send the answer to the message that started an instance; return whether that message waits for one."""
    pending, sending = context.pending, context.require_sending("reply")
    if not pending.requester:
        return False
    message = runtime_of(current_app()).services.terms.answer(pending.requester, value)
    if message is None:
        return False
    sending.messages.append(message)
    pending.requester = None
    return True


def _members_of(message: "Signature[Any]") -> list["Signature[Any]"]:
    """Return the tasks of a chain, or the single task of another signature."""
    return list(message.tasks) if isinstance(message, _chain) else [message]


def _is_delayed(message: "Signature[Any]", members: list["Signature[Any]"]) -> bool:
    """Return whether a message, or a task of its chain, has a due time of its own."""
    return any(part.options.get(name) is not None for name in ("countdown", "eta") for part in (message, *members))


def _deadline(otherwise: Any | None, within: Delay | None, due_at: int | None = None) -> int:
    """Return when an answer comes too late, in milliseconds since the epoch; 0: never.

    Raises:
        TypeError: No step would be notified.
        ValueError: It is over before it begins, or beyond all dates.
    """
    if within is None:
        return 0
    if otherwise is None:
        raise TypeError("within= needs otherwise=: name the step that is told when nothing has come")
    seconds = seconds_of("within", within)
    if seconds <= 0:
        raise ValueError(f"within={within!r} is over before it begins: give the answer some time")
    return due_time(seconds, since=due_at or None)


def _asking(app: Celery, message: "Signature[Any]", address: ReturnAddress, answer_id: str, deadline: int) -> "Signature[Any]":
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


def _deadline_message(context: StepContext, asked: Request, to: Target, outcome: Any) -> SerializedMessage:
    """Return the message that reports the deadline of a request, and ends with its instance."""
    headers = answer_headers(context.view.id, asked.id, ReplyKind.DEADLINE)
    sent = signature_to(current_app(), to, outcome, headers=headers)
    message = context.require_sending("send").serialize(sent, lambda: derived_id(asked.id, ReplyKind.DEADLINE))
    return due_later(message, asked.at, asked.otherwise)


def _checked_members(signatures: Iterable[Any]) -> "list[tuple[Signature[Any], list[Signature[Any]]]]":
    """Return the members, each with its tasks."""
    if isinstance(signatures, Signature | str):
        raise TypeError("gather() takes a list of signatures, one for each member: gather([task.s(…), …])")
    members = []
    for position, message in enumerate(signatures):
        if position >= MEMBERS:
            raise ValueError(f"gather() takes at most {MEMBERS:,} members: gather parts of them, or send a task that gathers")
        try:
            members.append((message, _members_of(checked(message))))
        except TypeError as exc:
            raise TypeError(f"the member {position} of gather() cannot be sent: {exc}") from exc
    if not members:
        raise ValueError("gather() was given no members, so that nothing would ever come")
    return members


def _check_times(members: "list[tuple[Signature[Any], list[Signature[Any]]]]") -> None:
    """Refuse a member that waits before it is sent: the time of all members counts from now."""
    for position, (message, tasks) in enumerate(members):
        if _is_delayed(message, tasks):
            raise TypeError(f"the member {position} of gather() has a countdown or eta, which does not go with within=")


def _checked_number(at_least: int | None, members: int, otherwise: Any) -> int:
    """Return how many members must answer."""
    if at_least is None:
        return members
    if otherwise is None:
        raise TypeError("at_least= needs otherwise=: name the step that runs when fewer have answered")
    if isinstance(at_least, bool) or not isinstance(at_least, int) or not 1 <= at_least <= members:
        raise ValueError(f"at_least={at_least!r} is no number from 1 to {members}, of the members of gather()")
    return at_least


def _member(
    context: StepContext,
    saga: SagaDefinition,
    asked: Request,
    position: int,
    message: "Signature[Any]",
    tasks: "list[Signature[Any]]",
) -> SerializedMessage:
    """Return the message of a member: its outcome is an answer to its own id, and is collected."""
    app, sending = current_app(), context.require_sending("gather")
    ids = [sending.next_id() for _ in tasks]
    to = _collector(saga, asked, position, str(tasks[-1].task))
    address = ReturnAddress(saga.name, context.view.id, ids[-1], to, to)
    sent = _asking(app, message, address, derived_id(asked.id, f"answer {position}"), asked.at)
    return sending.serialize(sent, iter(ids).__next__)


def _collector(saga: SagaDefinition, asked: Request, *about: Any) -> Target:
    """Return the task that collects answers. It is published like the step that receives them, to workers that know the saga."""
    return Target(GATHER, (saga.name, asked.id, *about), options=asked.to_then.options if asked.to_then else {})


def _warn_of_early_acknowledgement(app: Celery, members: "list[Signature[Any]]") -> None:
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
