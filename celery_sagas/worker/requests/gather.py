"""``gather``: send many messages, and have one step receive all of their outcomes."""

from collections.abc import Iterable
from typing import Any

from celery.canvas import Signature

from celery_sagas.core.context import StepContext
from celery_sagas.core.ids import derived_id
from celery_sagas.core.requests.answers import GATHERED
from celery_sagas.core.requests.requests import GATHER, Request, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import serialized_target
from celery_sagas.worker.requests.requests import asking, deadline_message, deadline_of, members_of, warn_of_early_acknowledgement
from celery_sagas.worker.targets import target_of
from celery_sagas.worker.timeouts import Delay

#: The maximum number of members of a gather: one commit sends no more messages.
MEMBERS = 1_000


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
    """
    sending = context.require_sending("gather")
    members = _checked(signatures)
    needed = _checked_number(at_least, len(members), otherwise)
    if within is not None:
        _check_times(members)
    deadline = deadline_of(*members[0], otherwise, within)
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
            warn_of_early_acknowledgement(current_app(), tasks)
    sent = [_member(context, saga, asked, position, *member) for position, member in enumerate(members)]
    over = deadline_message(context, asked, _collector(saga, asked), None) if deadline else None
    sending.messages += sent
    context.pending.new_requests[asked.id] = asked, over
    return asked.id


def _checked(signatures: Iterable[Any]) -> "list[tuple[Signature[Any], list[Signature[Any]]]]":
    """Return the members, each with its tasks."""
    if isinstance(signatures, Signature | str):
        raise TypeError("gather() takes a list of signatures, one for each member: gather([task.s(…), …])")
    members = []
    for position, message in enumerate(signatures):
        if position >= MEMBERS:
            raise ValueError(f"gather() takes at most {MEMBERS:,} members: gather parts of them, or send a task that gathers")
        try:
            members.append((message, members_of(message)))
        except TypeError as exc:
            raise TypeError(f"the member {position} of gather() cannot be sent: {exc}") from exc
    if not members:
        raise ValueError("gather() was given no members, so that nothing would ever come")
    return members


def _check_times(members: "list[tuple[Signature[Any], list[Signature[Any]]]]") -> None:
    """Refuse a member that waits before it is sent: the time of all members counts from now."""
    for position, (message, tasks) in enumerate(members):
        if any(part.options.get(name) is not None for name in ("countdown", "eta") for part in (message, *tasks)):
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
    sent = asking(app, message, address, derived_id(asked.id, f"answer {position}"), asked.at)
    return sending.serialize(sent, iter(ids).__next__)


def _collector(saga: SagaDefinition, asked: Request, *about: Any) -> Target:
    """Return the task that collects answers. It is published like the step that receives them, to workers that know the saga."""
    return Target(GATHER, (saga.name, asked.id, *about), options=asked.to_then.options if asked.to_then else {})
