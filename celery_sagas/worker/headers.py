"""The message headers: which instances caused a message, and to which one it is addressed.

Plain participants hand the causation on without knowing of sagas. An address goes no further than its message.

Whoever may publish may put anything into a header. What is not of its form is taken as absent, or fails with ``InvalidMessage``;
nothing else is raised here.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard
from uuid import uuid4

from pydantic_core import from_json, to_json

from celery_sagas.core.requests.requests import (
    GATHER,
    Addressed,
    ReplyKind,
    ReturnAddress,
    Target,
)
from celery_sagas.engine.session import MAX_CAUSATION, Session
from celery_sagas.errors import InvalidMessage

#: Saga name to instance id, at most ``MAX_CAUSATION`` of them.
CAUSATION = "saga_causation"
#: The id of the message whose task published this one.
CAUSE = "saga_cause"
#: Of a timeout, or of what came of a request: the instance it goes to, and the id of the timeout or request.
ADDRESS = "saga_address"
#: Of a message that asks for an answer: where that goes, as JSON text, since AMQP has types of its own for what is in a header.
RETURN_ADDRESS = "saga_return_address"
#: The id under which a message is remembered, for producers that have one of their own; else the task's id.
MESSAGE_ID = "saga_message_id"
#: The name of the aggregator whose item a message is.
AGGREGATOR = "saga_aggregator"
#: Of a message to a step: whoever does not know the step keeps the message all the same.
STEP = "saga_step"
#: Of a message that an operator has retried: the id of its dead letter.
RETRY_OF = "saga_retry_of"
#: Of a message to a plain task: which publication it is. A redelivery and a retry have the same.
PUBLICATION = "saga_publication"
#: How often the library has redelivered this message later, because the store could not serve it.
REDELIVERIES = "saga_redeliveries"

_MAX_CHARACTERS = 255
#: RabbitMQ takes the headers of a message in one frame, of 128 KiB with everything else that is in them.
_RETURN_ADDRESS_BYTES = 32_768
_CAME = frozenset({"", *ReplyKind})
#: More retries, or redeliveries, than any message has.
_MANY = 1_000_000


def stamped_causation(request: Any) -> dict[str, str]:
    """Return the causation that the message bears for which a task runs; what is not of its form is left out."""
    found = _header(request, CAUSATION)
    if not isinstance(found, Mapping):
        return {}
    pairs = list(found.items())[-MAX_CAUSATION:]
    return {saga: instance for saga, instance in pairs if is_name(saga) and is_name(instance)}


def address_headers(instance_id: str, timeout: str) -> dict[str, Any]:
    """Return the headers of a timeout."""
    return {ADDRESS: {"instance": instance_id, "timeout": timeout}}


def read_address(request: Any) -> Addressed | None:
    """Return where the message of a task is addressed to, if it is a timeout, or came of a request.

    Raises:
        InvalidMessage: It has an address that cannot be read.
    """
    found = _header(request, ADDRESS)
    if found is None:
        return None
    if isinstance(found, Mapping):
        came = found.get("came", "")
        instance, id = found.get("instance"), found.get("request" if came else "timeout")
        if is_name(instance) and is_name(id) and isinstance(came, str) and came in _CAME:
            return Addressed(instance, id, came, found.get("has_value") is not False)
    raise InvalidMessage(task_of(request), [(ADDRESS, "the header is no address")])


def answer_headers(instance_id: str, request: str, came: ReplyKind) -> dict[str, Any]:
    """Return the headers of what came of a request."""
    return {ADDRESS: {"instance": instance_id, "request": request, "came": came.value}}


def is_answer(request: Any) -> bool:
    """Whether a task's message is the answer to a request."""
    found = _header(request, ADDRESS)
    return isinstance(found, Mapping) and found.get("came") == ReplyKind.ANSWER


def answer_headers_to(task: str, address: ReturnAddress, *, has_value: bool = True) -> dict[str, Any]:
    """Return the headers of the answer to a request: if it cannot be handled, its failure goes where that of the request goes.

    But not that of a member of a gather, which is complete once the answer's dead letter is retried: the first that comes counts.

    Raises:
        InvalidMessage: They are larger than a broker takes.
    """
    headers = answer_headers(address.instance, address.request, ReplyKind.ANSWER)
    if not has_value:
        headers[ADDRESS]["has_value"] = False
    if address.otherwise is None or address.otherwise.task == GATHER:
        return headers
    return headers | return_address_headers(task, address._replace(then=None))


def return_address_headers(task: str, address: ReturnAddress) -> dict[str, Any]:
    """Return the headers of a message that asks for an answer.

    Raises:
        InvalidMessage: They are larger than a broker takes.
    """
    text = to_json(address.to_json())
    if len(text) > _RETURN_ADDRESS_BYTES:
        problem = f"the arguments of then= and otherwise= have {len(text)} bytes, {_RETURN_ADDRESS_BYTES:,} are allowed"
        raise InvalidMessage(task, [("", f"{problem}: keep them in the state")])
    return {RETURN_ADDRESS: text.decode()}


def serialized_target(target: Target) -> Target:
    """Return a target as it is now, whatever becomes of its arguments.

    Raises:
        InvalidMessage: They cannot be encoded, or are larger than what a message may say of where its answer goes.
    """
    try:
        text = to_json(target.to_json())
    except (ValueError, TypeError, RecursionError) as exc:
        raise InvalidMessage(target.task, [("", "its arguments cannot be encoded as JSON")]) from exc
    if len(text) > _RETURN_ADDRESS_BYTES:
        problem = f"the arguments of a step that gets answers have {len(text)} bytes, {_RETURN_ADDRESS_BYTES:,} are allowed"
        raise InvalidMessage(target.task, [("", f"{problem}: keep them in the state")])
    return Target.from_json(from_json(text)) or target


def read_return_address_of(request: Any) -> ReturnAddress | None:
    """Return where the answer to a task's message goes, if it asks for one; what is not of its form is none."""
    found = _header(request, RETURN_ADDRESS)
    if not isinstance(found, str) or len(found) > _RETURN_ADDRESS_BYTES:
        return None
    try:
        return ReturnAddress.from_json(from_json(found))
    except (ValueError, TypeError):  # the latter of a lone surrogate
        return None


def read_message_id(request: Any) -> str:
    """Return the id under which a message is remembered: what its producer calls it, else the task's id."""
    named = _header(request, MESSAGE_ID)
    return named if isinstance(named, str) and named else id_of(request) or str(uuid4())


def read_publication(request: Any) -> str:
    """Return which publication a task's message is; empty if it does not say so."""
    found = _header(request, PUBLICATION)
    return found if is_name(found) else ""


def read_retry_of(request: Any) -> str:
    """Return the id of the dead letter whose message is retried; empty if it is none."""
    found = _header(request, RETRY_OF)
    return found if is_name(found) else ""


def check_message_id(step: str, named: object) -> None:
    """Refuse a producer's message id that no store could keep.

    Raises:
        InvalidMessage: It is no text of 1 to 255 printable characters.
    """
    if named is not None and not is_name(named):
        raise InvalidMessage(step, [(MESSAGE_ID, f"the header is no text of 1 to {_MAX_CHARACTERS} printable characters")])


def is_name(value: object) -> TypeGuard[str]:
    """Whether every store can keep a value as a name or an id: a text of 1 to 255 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_CHARACTERS and value.isprintable()


def read_redeliveries(request: Any) -> int:
    """Return how often the library has redelivered the message later."""
    return _count_of(_header(request, REDELIVERIES))


def read_retries(request: Any) -> int:
    """Return how often the task of a message was retried."""
    return _count_of(request.retries)


def headers_of(request: Any) -> Mapping[str, Any]:
    """Return the headers of a request that are not Celery's own."""
    headers = request.headers
    return headers if isinstance(headers, dict) else {}


def task_of(request: Any) -> str:
    """Return the name of the task that a message is for; empty if it names none."""
    return str(request.__dict__.get("task", ""))


def id_of(request: Any) -> str:
    """Return the id of a message's task; empty if it has none."""
    return str(request.id or "")


def causation_headers(session: Session) -> dict[str, Any]:
    """Return the headers of a message that is published while a session runs."""
    return {CAUSE: session.message_id[:_MAX_CHARACTERS]} | ({CAUSATION: dict(session.causation)} if session.causation else {})


def stamp(headers: dict[str, Any], session: Session) -> None:
    """Put the causation on a message, unless it has one."""
    if not is_stamped(headers):
        headers.update(causation_headers(session))


def stamp_publication(headers: dict[str, Any], new: Callable[[str], str]) -> None:
    """Say which publication a message is, unless it has come from a commit: its task may be sent again under the same id.

    To a step the id alone says which message it is, and so does one that a producer names.
    """
    if headers.keys().isdisjoint((PUBLICATION, MESSAGE_ID, STEP, CAUSE, CAUSATION)):
        headers[PUBLICATION] = new(str(headers.get("id")))


def hand_over(headers: dict[str, Any], request: Any, publication: str) -> None:
    """Put what a task's message bears on one that is sent in its place: by ``replace``, which does not; ``retry`` does.

    To a plain task it is another publication under the same id: what it publishes itself is not what the task had published. What
    is retried, or is a step's, is the same one.
    """
    is_same = STEP in headers or _count_of(headers.get("retries")) > read_retries(request)
    cause, address = _header(request, CAUSE), _header(request, RETURN_ADDRESS)
    given = {
        CAUSE: cause[:_MAX_CHARACTERS] if isinstance(cause, str) else None,
        CAUSATION: stamped_causation(request) or None,
        RETURN_ADDRESS: address if isinstance(address, str) else None,
        PUBLICATION: None if is_same else publication,
    }
    for name, value in given.items():
        if value is not None:
            headers.setdefault(name, value)


def is_stamped(headers: Mapping[str, Any]) -> bool:
    """Whether a message bears what ``stamp`` puts on it."""
    return CAUSE in headers or CAUSATION in headers


def _header(request: Any, name: str) -> object:
    """Read a header: Celery merges them into the request, but for eager tasks, where they are in ``headers`` alone.

    A header may have the name of one of the request's methods, and hide it: they are not called.
    """
    value = request.__dict__.get(name)
    return headers_of(request).get(name) if value is None else value


def _count_of(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < _MANY else 0
