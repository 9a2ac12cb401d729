"""Answers that an operator gives in the place of those who were asked."""

from collections.abc import Mapping
from json import dumps
from typing import Any, Final, NamedTuple

from celery_sagas.core.ids import derived_id
from celery_sagas.core.names import storable
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.answers import NO_VALUE, Failure
from celery_sagas.core.requests.requests import ReplyKind, Request, ReturnAddress, Target
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.engine.acts.acting import Subject
from celery_sagas.engine.acts.verbs import awaited_by
from celery_sagas.engine.dead_letters.dead_lettering import TEXT_CHARACTERS
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.worker.headers import answer_headers
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.targets import signature_to, target_named

#: The kinds of the failures that an operator decides, of a request and of an instance: they are final.
_REVOKED: Final = "revoked"
_TERMINATED: Final = "terminated"
_BY_OPERATOR: Final = "Terminated"


class Sent(NamedTuple):
    """What an operator sends in the place of those who were asked."""

    request: Request
    message: SerializedMessage


def answer_to(runtime: Runtime, subject: Subject, *, request: str, value: Any, arguments: Mapping[str, Any]) -> Sent:
    """Return the answer to a request of an instance.

    Raises:
        MisuseError: The instance waits for no such answer, or gathers the answers of several.
        InvalidMessage: The step does not accept the value, or lacks an argument.
    """
    asked = _asked(subject, request)
    return _sent(runtime, subject, asked, asked.then, value, arguments, ReplyKind.ANSWER)


def failure_to(runtime: Runtime, subject: Subject, *, request: str, text: str, arguments: Mapping[str, Any]) -> Sent:
    """Return the failure of a request of an instance.

    Raises:
        MisuseError: The instance waits for no such answer, gathers the answers of several, or has no step for a failure.
        InvalidMessage: The step lacks an argument.
    """
    asked = _asked(subject, request)
    if not asked.otherwise:
        raise MisuseError(f"no step of {subject.name} gets a failure of {asked.task}", "Answer it, or skip it")
    failure = Failure(kind=_REVOKED, task=asked.task, task_id=asked.id, error=_BY_OPERATOR, text=storable(text, TEXT_CHARACTERS))
    return _sent(runtime, subject, asked, asked.otherwise, failure.__json__(), arguments, ReplyKind.FAILURE)


def end_for_requester(runtime: Runtime, subject: Subject, *, as_completed: bool) -> SerializedMessage | None:
    """Return what whoever waits for the answer of an instance is told when it is terminated; ``None`` if nobody waits.

    Args:
        runtime: Of the app.
        subject: The instance.
        as_completed: Whether that is what a step tells that completes it without a reply; else it is a failure.
    """
    requester = subject.pending.requester
    if not isinstance(requester, dict) or not requester:  # a damaged one has nobody who could be told
        return None
    address = ReturnAddress.from_json(requester)
    if address is None:
        return None
    if as_completed or address.otherwise is None:
        return runtime.services_of(subject.saga).terms.answer(requester, NO_VALUE)
    text = f"an operator has terminated {subject.name}"
    failure = Failure(kind=_TERMINATED, task=subject.saga.name, task_id=address.request, error=_BY_OPERATOR, text=text)
    headers = answer_headers(address.instance, address.request, ReplyKind.FAILURE, failure.kind)
    id = derived_id(address.request, ReplyKind.FAILURE)
    return _serialized(runtime, subject, address.otherwise, failure.__json__(), headers, id)


def _asked(subject: Subject, name: str) -> Request:
    asked = awaited_by(subject.pending, subject.name, name)
    if not isinstance(asked, Request):
        raise MisuseError(f"{name} of {subject.name} is a timeout, and no request", "Have it come now: celery sagas fire")
    if asked.members:
        problem = f"{subject.name} gathers the answers of {asked.members:,} tasks"
        raise MisuseError(problem, "Have its deadline come now: celery sagas fire; or skip it")
    return asked


def _sent(
    runtime: Runtime, subject: Subject, asked: Request, to: str, value: Any, arguments: Mapping[str, Any], came: ReplyKind
) -> Sent:
    target = target_named(runtime.app, to)._replace(kwargs=dict(arguments))
    _check(target, value)
    headers = answer_headers(subject.record.id, asked.id, came, _REVOKED if came == ReplyKind.FAILURE else "")
    id = derived_id(asked.id, subject.act.id)  # of this act: the step may have failed with the answer before
    return Sent(asked, _serialized(runtime, subject, target, value, headers, id))


def _check(target: Target, value: Any) -> None:
    """Refuse an answer that its step would not accept."""
    step = registry.step_named(target.task)
    if step is None:
        raise MisuseError(f"the step {target.task} is not defined in this app", "Run the command where the app defines it")
    if step.is_internal:
        return
    bound = step.arguments.bind((value,), target.kwargs)
    missing = [name for name in step.arguments.annotations if name not in bound and name not in step.arguments.defaults]
    if missing:
        raise InvalidMessage(step.name, [(name, "it is missing: give it as an argument of the step") for name in missing])
    step.arguments.validate(bound)
    if r"\u0000" in dumps(bound).replace(r"\\", ""):
        raise InvalidMessage(step.name, [("", "it has the character U+0000, which no store keeps")])


def _serialized(
    runtime: Runtime, subject: Subject, target: Target, value: Any, headers: Mapping[str, Any], id: str
) -> SerializedMessage:
    sent = signature_to(runtime.app, target, value, headers=headers)
    return runtime.services_of(subject.saga).terms.serialize(sent, lambda: id)
