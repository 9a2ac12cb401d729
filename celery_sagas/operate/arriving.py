"""A message that an operator makes up, as it would arrive at its step: from elsewhere, or as what an instance waits for."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from celery_sagas.core.correlation import ArgumentRule
from celery_sagas.core.pending import Pending
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.answers import Failure
from celery_sagas.core.requests.requests import Addressed, ReplyKind, Request
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.core.timeouts import Timeout
from celery_sagas.engine.acts.verbs import awaited_by
from celery_sagas.engine.instance import load_instance, pending_of
from celery_sagas.engine.unit_of_work import correlate
from celery_sagas.errors import MisuseError
from celery_sagas.stores.records import ID, KEY, Record
from celery_sagas.worker.targets import step_of

#: How outcomes of requests are called.
_ARRIVALS: Final = {
    ReplyKind.ANSWER: "the answer",
    ReplyKind.FAILURE: "the failure",
    ReplyKind.PROGRESS: "an interim answer",
    ReplyKind.GATHERED: "the outcomes",
}


class Arriving(NamedTuple):
    """A message to a step, as it would arrive."""

    step: StepDefinition
    bound: dict[str, Any]  #: the arguments by name, as values of JSON
    record: Record | None = None  #: of the instance that is meant; ``None``: the arguments say which
    awaited: Timeout | Request | None = None  #: what the message is, if the instance waits for it

    @property
    def address(self) -> Addressed | None:
        """Its address, if the instance waits for it."""
        if self.record is None or self.awaited is None:
            return None
        if isinstance(self.awaited, Timeout):
            return Addressed(self.record.id, self.awaited.id)
        came = came_of(self.step, self.awaited) or ReplyKind.ANSWER
        value = self.bound.get(next(iter(self.step.arguments.annotations), ""))
        failure = str(value.get("kind", "")) if came is ReplyKind.FAILURE and isinstance(value, Mapping) else ""
        return Addressed(self.record.id, self.awaited.id, came, failure=failure)

    @property
    def arrived_as(self) -> str:
        """What it is, for people."""
        if self.record is None or self.awaited is None:
            return "a message"
        if isinstance(self.awaited, Request):
            return f"{_ARRIVALS[came_of(self.step, self.awaited) or ReplyKind.ANSWER]} of {self.awaited.task}"
        timeouts = pending_of(self.record).timeouts
        return f"the timeout {next(name for name, each in timeouts.items() if each.id == self.awaited.id)}"


def message_to(given: Any) -> Arriving:
    """Return the message that an operator names: a step, its name, or a signature of it.

    Raises:
        TypeError: It is none of these.
        MisuseError: There is no such step.
        InvalidMessage: An argument cannot be encoded, is given twice, or has no place.
    """
    name = given if isinstance(given, str) else getattr(given, "task", None) or getattr(given, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"a step, its signature or its name is tried, not {type(given).__name__}")
    step = registry.step_named(name)
    if step is None or step.is_internal:
        known = (each.name for each in registry.steps.values() if not each.is_internal)
        raise MisuseError(f"{name!r} is no step of this app", f"Known: {', '.join(known) or 'none'}")
    _, signature = step_of(step.saga, given, "a trial")
    args, kwargs = ((), {}) if signature is None else (signature.args or (), signature.kwargs or {})
    encoded = step.arguments.encode(args, kwargs)
    return Arriving(step, step.arguments.bind(*encoded))


def meant_for(message: Arriving, record: Record, name: str | None) -> Arriving:
    """Return a message as it would arrive at one instance.

    What the instance waits for, and would be handled by the step, is that: a timeout, or an outcome of a request. Its key need
    not be among the arguments.

    Args:
        message: The message.
        record: The instance.
        name: Of the timeout; or the id of the request, or its task. ``None``: the only one that goes to the step, if any does.

    Raises:
        MisuseError: The instance waits for nothing of this name, or the step does not handle that; or several go to the step.
        CorrelationError: The arguments name no instance.
        NewerState: Newer code has written it.
        UnreadableState: It cannot be read.
    """
    step = message.step
    pending, whose = pending_of(record), f"{record.saga} {record.key!r}"
    state = load_instance(step.saga, record, pending=pending)
    bound = with_keys(step, message.bound, state)
    awaited = chosen(step, pending, whose, name)
    if awaited is None:
        _check_own(step, bound, record, pending)
    elif isinstance(awaited, Request) and came_of(step, awaited) is ReplyKind.FAILURE:
        first = next(iter(step.arguments.annotations), "")
        failure = Failure(kind="error", task=awaited.task, task_id=awaited.id).__json__()
        bound = {**({first: failure} if first else {}), **bound}
    return message._replace(bound=bound, record=record, awaited=awaited)


def with_keys(step: StepDefinition, bound: Mapping[str, Any], state: State) -> dict[str, Any]:
    """Return the arguments of a message with those that name its instance, as far as these are arguments of their own."""
    sources = step.rule.sources if isinstance(step.rule, ArgumentRule) else ()
    named = {source.path[0]: getattr(state, part.field, None) for part, source in sources if len(source.path) == 1}
    missing = {name: value for name, value in named.items() if name not in bound and value is not None}
    return {**bound, **step.arguments.encode((), missing)[1]}


def chosen(step: StepDefinition, pending: Pending, whose: str, name: str | None) -> Timeout | Request | None:
    """Return what an instance waits for, that is meant; ``None``: the message is from elsewhere.

    Args:
        step: The step to which the message goes.
        pending: What the instance waits for.
        whose: The instance, for errors.
        name: As in ``meant_for``.

    Raises:
        MisuseError: As in ``meant_for``.
    """
    if name is not None:
        awaited = awaited_by(pending, whose, name)
        if not _goes_to(step, awaited):
            to = awaited.step if isinstance(awaited, Timeout) else awaited.then
            raise MisuseError(f"{name} of {whose} goes to {to}, and not to {step.name}", f"Try {to}")
        return awaited
    timeouts = {name: timeout for name, timeout in pending.timeouts.items() if _goes_to(step, timeout)}
    requests = {id: request for id, request in pending.requests.items() if _goes_to(step, request)}
    found: list[Timeout | Request] = [*timeouts.values(), *requests.values()]
    if len(found) > 1:
        raise MisuseError(f"{whose} waits for several that go to {step.name}", f"Name one: {', '.join([*timeouts, *requests])}")
    return found[0] if found else None


def _goes_to(step: StepDefinition, awaited: Timeout | Request) -> bool:
    if isinstance(awaited, Timeout):
        return awaited.step in step.names
    return not awaited.has_timed_out and came_of(step, awaited) is not None


def came_of(step: StepDefinition, request: Request) -> ReplyKind | None:
    """Return the kind of the outcome of a request that a step handles; ``None`` if it handles none."""
    steps = {request.then: ReplyKind.ANSWER, request.otherwise: ReplyKind.FAILURE, request.progress: ReplyKind.PROGRESS}
    came = next((came for name, came in steps.items() if name in step.names), None)
    return ReplyKind.GATHERED if came is not None and request.members else came


def _check_own(step: StepDefinition, bound: Mapping[str, Any], record: Record, pending: Pending) -> None:
    """Refuse a message whose arguments name another instance than the one that is meant."""
    address, _ = correlate(step, bound, {step.saga.name: record.id})
    own = {KEY: record.key, ID: record.id, **pending.keys}
    if own.get(address.property) != address.text:
        meant = f"{record.saga} {record.key!r} is meant, and the arguments of {step.name} name {address.text!r}"
        raise MisuseError(meant, "Leave one of them out")
