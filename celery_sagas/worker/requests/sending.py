"""Sending: messages together with the steps that receive their outcomes, one by one or gathered; and the reply to a request."""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from celery import Celery
from celery.canvas import Signature, _chain

from celery_sagas.core.context import StepContext
from celery_sagas.core.delays import Backoff, Delay, checked_backoff, seconds_of
from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.answers import ANSWER, FAILURE, GATHERED, INTERIM
from celery_sagas.core.requests.requests import ANSWERED, GATHER, Again, Request, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.worker.asking.message import Receivers, ask, asking, deadline_message
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import serialized_target
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.serialization import checked, encode_arguments
from celery_sagas.worker.targets import interim_answer, target_named, target_of, undo_target, wired
from celery_sagas.worker.timeouts import due_time

logger = logging.getLogger("celery_sagas")

#: The maximum number of members of a gather: one commit sends no more messages.
MEMBERS = 1_000


class Asking(NamedTuple):
    """What ``send`` was given besides the message, as it was given."""

    then: Any = None
    otherwise: Any = None
    within: Delay | None = None
    undo: Any = None
    retry: Backoff | None = None
    progress: Any = None

    @property
    def is_request(self) -> bool:
        """Whether anything comes of the message."""
        return any(given is not None for given in self)


def request(context: StepContext, saga: SagaDefinition, message: object, given: Asking, due_at: int | None) -> str:
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
    within, otherwise = given.within, given.otherwise
    if within is not None and _is_delayed(sent, members):
        raise TypeError("within= was given, and a signature with a countdown or eta: use after=, from which the time counts")
    deadline = _deadline(otherwise, within, due_at)
    ids = [sending.next_id() for _ in members]
    to = _receivers(app, saga, given)
    if not deadline:
        _warn_of_early_acknowledgement(app, members)
    asked = Request(
        ids[-1],
        str(members[-1].task),
        to.then.task,
        to.otherwise.task if to.otherwise else "",
        at=deadline,
        undo=None if given.undo is None else _checked_undo(app, sent, given, to.then),
        again=None if given.retry is None else _checked_retry(sent, given, to),
        progress=to.progress.task if to.progress else "",
    )
    ask(context, saga, sent, asked, to, due_at, ids)
    return asked.id


def _receivers(app: Celery, saga: SagaDefinition, given: Asking) -> Receivers:
    """Return the steps that receive what comes of a request; without ``then`` the library's own receives the answer.

    Raises:
        TypeError: One is not a step, a signature or a name.
        MisuseError: One does not belong to this saga.
        InvalidMessage: One has no parameter for what it receives, or does not accept it.
    """
    return Receivers(
        target_of(saga, given.then, ANSWER) if given.then is not None else target_named(app, f"{saga.name}.{ANSWERED}"),
        target_of(saga, given.otherwise, FAILURE) if given.otherwise is not None else None,
        target_of(saga, given.progress, INTERIM) if given.progress is not None else None,
    )


def _checked_undo(app: Celery, sent: "Signature[Any]", given: Asking, *receivers: Target) -> Target:
    """Return the task that undoes a request.

    Raises:
        TypeError: The request is a chain, has no deadline, or its answer goes to a step that is not given it.
        InvalidMessage: The task does not accept its arguments.
    """
    if isinstance(sent, _chain):
        raise TypeError("a chain has no undo=, which would forget what its first tasks have done: send them one by one")
    if given.within is None or given.otherwise is None:
        raise TypeError("undo= needs within= and otherwise=: undoing has to know when to stop waiting for the answer")
    undo = undo_target(app, given.undo)
    if undo.takes and not all(receiver.takes for receiver in receivers):
        raise TypeError("undo= takes the answer, and then= leaves it out: name one with .s(), or the other with .si() as well")
    return undo


def _checked_retry(sent: "Signature[Any]", given: Asking, to: Receivers) -> Again:
    """Return how a request is sent again.

    Raises:
        TypeError: The request is a chain, has no step for its last failure, or ``retry`` is no ``Backoff``.
        ValueError: A part of it is out of its bounds.
    """
    if isinstance(sent, _chain):
        raise TypeError("a chain has no retry=: give its tasks retries of their own, or send them one by one")
    if given.otherwise is None:
        raise TypeError("retry= needs otherwise=: name the step that gets the last failure")
    within_s = 0.0 if given.within is None else seconds_of("within", given.within)
    backoff = checked_backoff("retry", given.retry)
    task = sent.clone()
    encode_arguments(current_app(), task, are_complete=True)
    options = {name: value for name, value in sent.options.items() if name not in ("countdown", "eta")}  # of the first attempt
    again = Again(wired(str(sent.task), {**task, "options": options}), backoff, within_s)
    return again._replace(to_then=to.then, to_otherwise=to.otherwise, to_progress=to.progress)


def gather(
    context: StepContext,
    saga: SagaDefinition,
    signatures: Iterable[Any],
    then: Any,
    otherwise: Any,
    at_least: int | None,
    within: Delay | None,
    undo: Any = None,
    early: bool = False,
) -> str:
    """Send messages, and record that their answers are awaited; return the request's id.

    Raises:
        TypeError: A member, or a step, has a wrong type; ``within`` or ``at_least`` is given without ``otherwise``; or ``early``
            is given without ``at_least``, or with ``undo``.
        ValueError: There are too few or too many members, or ``at_least`` is not between 1 and their number.
        MisuseError: A step does not belong to this saga.
        InvalidMessage: A step has no parameter for the outcomes, or does not accept them; or a member cannot be sent.
        ConfigurationError: The backend collects no answers.
    """
    sending = context.require_sending("gather")
    if not context.collects:  # nothing of it is sent
        runtime_of(current_app()).gathering_of(saga).require()
    members = _checked_members(signatures)
    _check_early(early, at_least, undo)
    needed = _checked_number(at_least, len(members), otherwise)
    if within is not None:
        _check_times(members)
    deadline = _deadline(otherwise, within)
    to_undo = None if undo is None else _checked_undo_of_members(members, Asking(then, otherwise, within, undo))
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
        undo=to_undo,
        early=early,
    )
    if to_undo and not all(target.takes for target in (to_then, to_otherwise) if target):
        raise TypeError("undo= takes the answers: then= and otherwise= must be given them, too, without .si()")
    if not deadline:
        for _, tasks in members:
            _warn_of_early_acknowledgement(current_app(), tasks)
    sent = [_member(context, saga, asked, position, *member) for position, member in enumerate(members)]
    over = deadline_message(context, asked, _collector(saga, asked), None) if deadline else None
    sending.messages += sent
    context.pending.new_requests[asked.id] = asked, over
    return asked.id


def reply(context: StepContext, value: object, *, is_last: bool) -> bool:
    """Send an answer to the message that started an instance; return whether that waits for it, or for interim ones."""
    pending, sending = context.pending, context.require_sending("reply")
    if not isinstance(is_last, bool):
        raise TypeError(f"last= takes True or False, not {type(is_last).__name__}")
    if not pending.requester:
        return False
    if not is_last:
        interim = interim_answer(current_app(), pending.requester, value)
        if interim is not None:
            sending.send(interim)
        return interim is not None
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


def _checked_undo_of_members(members: "list[tuple[Signature[Any], list[Signature[Any]]]]", given: Asking) -> Target:
    """Return the task that undoes each member that has answered."""
    refused = next((message for message, _ in members if isinstance(message, _chain)), None)
    target = _checked_undo(current_app(), members[0][0] if refused is None else refused, given)
    if not target.takes:
        raise TypeError("the undo= of gather() takes the answer of each member: name it without .si()")
    return target


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


def _check_early(early: bool, at_least: int | None, undo: Any) -> None:
    """Refuse to end a gather early that does not say with how many answers, or whose late answers would have to be undone."""
    if not isinstance(early, bool):
        raise TypeError(f"early= takes True or False, not {early!r}")
    if early and at_least is None:
        raise TypeError("early=True needs at_least=: say how many answers are enough")
    if early and undo is not None:
        raise TypeError("early=True goes without undo=: the answers that come late are dropped, and would not be undone")


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
    ids = [*(sending.next_id() for _ in tasks[1:]), asked.member(position)]
    to = _collector(saga, asked, position, str(tasks[-1].task))
    address = ReturnAddress(saga.name, context.view.id, ids[-1], to, to)
    sent = asking(app, message, address, derived_id(asked.id, f"answer {position}"), asked.at)
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
