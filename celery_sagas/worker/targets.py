"""The steps that a request names: the contents of their messages, and how any process publishes them."""

import inspect
import json
import logging
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.canvas import Signature, _chain
from kombu.utils.json import loads
from pydantic_core import from_json, to_jsonable_python

from celery_sagas.core.arguments import MASK, holds_secret, is_native
from celery_sagas.core.ids import derived_id
from celery_sagas.core.registry import registry
from celery_sagas.core.requests.answers import NO_VALUE, Given, may_take
from celery_sagas.core.requests.requests import ROUTING, ReplyKind, ReturnAddress, Target
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import SerializedMessage
from celery_sagas.core.step import StepDefinition
from celery_sagas.core.subclasses import ANY, cut_off, is_exact
from celery_sagas.engine.requests.gathering import Gather
from celery_sagas.errors import InvalidMessage, MisuseError
from celery_sagas.worker.celery_internals import current_app, routing_of
from celery_sagas.worker.headers import STEP, answer_headers, answer_headers_to
from celery_sagas.worker.serialization import as_json, check_arguments, checked, encode_arguments, serialized

logger = logging.getLogger("celery_sagas")


def step_of(saga: SagaDefinition, given: Any, what: str) -> tuple[StepDefinition, "Signature[Any] | None"]:
    """Return the step that was given as a step, as its name with or without that of the saga, or as a signature of it.

    Raises:
        TypeError: It is none of these.
        MisuseError: It does not belong to this saga.
    """
    signature = given if isinstance(given, Signature) else None
    name = given if isinstance(given, str) else getattr(given, "name" if signature is None else "task", None)
    if not isinstance(name, str):
        raise TypeError(f"{what} takes a step, its signature or its name, not {type(given).__name__}")
    steps = [step for step in registry.steps_of(saga) if not step.is_internal]
    for step in steps:
        if name in step.names or f"{saga.name}.{name}" in step.names:
            return step, signature
    known = ", ".join(step.name for step in steps)
    raise MisuseError(f"{name!r} is no step of the saga {saga.name}, to which {what} goes", f"Known: {known}")


def target_of(saga: SagaDefinition, step_or_signature: Any, given: Given) -> Target:
    """Return a step as a target, with a parameter for the value that it is given.

    Raises:
        TypeError: It is not a step, a signature or a name.
        MisuseError: It does not belong to this saga.
        InvalidMessage: It has no parameter for the given value, does not accept it, or lacks an argument; or one cannot be
            encoded, or would not arrive unchanged.
    """
    step, signature = step_of(saga, step_or_signature, given.what)
    if signature is None:
        target = Target(step.name)
    else:
        encode = step.arguments.encode if signature.immutable else step.arguments.encode_partial
        args, kwargs = encode(tuple(signature.args or ()), signature.kwargs or {})  # it may have been made by the step's name
        target = Target(step.name, tuple(args), kwargs, takes=not signature.immutable)
    if target.takes:
        _check_given(step, target, given)
    _check_arguments(step, target)
    return target._replace(options=routing_of(current_app(), step.name))


def target_named(app: Celery, task: str) -> Target:
    """Return a task of the library's own as a target."""
    return Target(task, options=routing_of(app, task))


def signature_to(
    app: Celery, target: Target, *values: Any, headers: Mapping[str, Any], id: str | None = None
) -> "Signature[Any]":
    """Return the message to a target; without values, the outcome is put before its arguments when it is published.

    Args:
        app: The app.
        target: The destination.
        *values: The outcome.
        headers: The message's headers.
        id: The message's id.
    """
    args = (*values, *target.args) if target.takes else target.args
    options = {"serializer": "json", **target.options, "headers": dict(headers), **({"task_id": id} if id else {})}
    return Signature(target.task, args, dict(target.kwargs), options, app=app, immutable=not target.takes)


def _check_given(step: StepDefinition, target: Target, given: Given) -> None:
    """Refuse a step that has no parameter for the given value, or whose annotation does not accept it."""
    first = step.arguments.first(target.args, target.kwargs)
    if not first:
        problem = f"it is given {given.what} before its arguments, and has no room for it"
    elif given.kind and not may_take(step.arguments.annotations[first], given.kind):
        problem = f"it is given {given.what}, and {first!r} is annotated as something else"
    else:
        return
    leading = ", ".join(list(inspect.signature(step.function).parameters)[: step.message_position])
    name = step.function.__name__
    remedy = f"write def {name}({leading}, {given.parameter}, …), or name the step as {name}.si(…), which is not given it"
    raise InvalidMessage(step.name, [("", f"{problem}: {remedy}")])


def _check_arguments(step: StepDefinition, target: Target) -> None:
    """Refuse arguments that are missing or unknown."""
    comes = (None,) if target.takes else ()
    bound = step.arguments.bind((*comes, *target.args), target.kwargs)
    known, optional = step.arguments.annotations, step.arguments.defaults
    problems = [(name, "it is missing") for name in known if name not in bound and name not in optional]
    problems += [(name, "it is unknown") for name in bound if name not in known]
    if problems:
        raise InvalidMessage(step.name, problems)


def serialized_answer(app: Celery, noted: Mapping[str, Any], value: object, max_bytes: int) -> SerializedMessage | None:
    """Encode the answer to a request; return ``None`` for an address in a newer code's form."""
    address = ReturnAddress.from_json(noted)
    if address is None or address.then is None:
        logger.warning("the request %s cannot be answered: its return address cannot be read", noted.get("request"))
        return None
    id = derived_id(address.request, ReplyKind.ANSWER)
    has_value = value is not NO_VALUE
    headers = answer_headers_to(address.then.task, address, has_value=has_value)
    sent = signature_to(app, address.then, _encoded(address.then.task, value) if has_value else None, headers=headers)
    return serialized(app, sent, lambda: id, max_bytes)


def interim_answer(app: Celery, noted: Mapping[str, Any], value: object) -> "Signature[Any] | None":
    """Return the message of an interim answer to a request; ``None`` if no step receives it.

    Raises:
        InvalidMessage: The value cannot be encoded.
    """
    address = ReturnAddress.from_json(noted)
    if address is None or address.progress is None:
        return None
    headers = answer_headers(address.instance, address.request, ReplyKind.PROGRESS)
    return signature_to(app, address.progress, _encoded(address.progress.task, value), headers=headers)


def publish_gathered(app: Celery, publisher: Any, gather: Gather, target: Target, gathered: Mapping[str, Any]) -> None:
    """Publish the message that ends a gather."""
    headers = answer_headers(gather.instance_id, gather.request, ReplyKind.GATHERED)
    sent = signature_to(app, target, gathered, id=derived_id(gather.request, ReplyKind.GATHERED), headers=headers)
    publisher.publish_signature(sent)


def _encoded(task: str, answer: object) -> Any:
    """Return an answer as JSON values.

    Raises:
        InvalidMessage: It cannot be encoded; or it holds a secret, or an object whose own fields would be left out.
    """
    if is_native(answer):
        return answer
    try:
        encoded = to_jsonable_python(answer, by_alias=True, round_trip=True)
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidMessage(task, [("", f"the answer, a {type(answer).__name__}, cannot be encoded as JSON")]) from exc
    if MASK in str(encoded) and holds_secret(answer):
        raise InvalidMessage(task, [("", "the answer holds a secret, which would be sent as asterisks: send its plain value")])
    if not is_exact(answer, ANY) and (problems := list(cut_off(answer, encoded))):
        raise InvalidMessage(task, problems)
    return encoded


def undo_target(app: Celery, given: Any) -> Target:
    """Return the task that undoes a request, as ``undo=`` names it.

    Raises:
        TypeError: It is neither a task nor a signature of one; or it has a time of its own.
        InvalidMessage: The task does not accept these arguments, or they cannot be encoded.
    """
    sent = given if isinstance(given, Signature) or not hasattr(given, "s") else given.s()
    if isinstance(sent, _chain):
        raise TypeError("undo= takes one task: let it send a chain, or be a step of a saga")
    if not isinstance(sent, Signature):
        raise TypeError(f"undo= takes a task, or a signature of one, not {type(given).__name__}")
    checked(sent)
    check_options(sent, "undo=")
    task = sent.clone()
    encode_arguments(app, task, are_complete=task.immutable)
    check_arguments(app, task if task.immutable else task.clone((None,)))
    options = {name: value for name, value in sent.options.items() if name in ROUTING and isinstance(value, str | int | float)}
    return Target(
        str(task.task), tuple(wired(str(task.task), task.args)), wired(str(task.task), task.kwargs), not task.immutable, options
    )


def wired(task: str, value: Any) -> Any:
    """Return a value as the JSON values in which kombu sends it to a task.

    Raises:
        InvalidMessage: It cannot be encoded.
    """
    return from_json(as_json(task, value))


def unwired(value: Any) -> Any:
    """Return what ``wired`` was given."""
    return loads(json.dumps(value))


def check_options(sent: Signature[Any], what: str) -> None:
    """Refuse options with which a message that the library sends later would not be sent.

    Raises:
        TypeError: It has some.
    """
    options = {name: value for name, value in sent.options.items() if value not in (None, [], {}) and name not in ROUTING}
    if options.get("headers") == {STEP: True}:  # as each signature of a step has
        del options["headers"]
    if options:
        raise TypeError(
            f"{what} was given a signature with {', '.join(sorted(options))}, which would have no effect: leave it out"
        )
