"""The message headers: the instances that caused a message, and the one to which it is addressed.

Plain participants pass the causation on without any saga code. An address applies to its message only.

Any publisher may put anything into a header. A malformed header is treated as absent, or fails with ``InvalidMessage``;
nothing else is raised here.
"""

from collections.abc import Callable, Iterable, Mapping
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
#: The id of the message whose task published this message.
CAUSE = "saga_cause"
#: On a timeout, or the outcome of a request: the receiving instance, and the id of the timeout or request.
ADDRESS = "saga_address"
#: On a message that requests an answer: the answer's destination, as JSON text, since AMQP has its own types for header values.
RETURN_ADDRESS = "saga_return_address"
#: The id under which a message is journaled, for producers with an id of their own; else the task's id.
MESSAGE_ID = "saga_message_id"
#: The name of the aggregator of an item's message.
AGGREGATOR = "saga_aggregator"
#: On a message to a step: a worker that does not know the step keeps the message.
STEP = "saga_step"
#: On a message that an operator has retried: the id of its dead letter.
RETRY_OF = "saga_retry_of"
#: On a message to a plain task: its publication. A redelivery and a retry have the same one.
PUBLICATION = "saga_publication"
#: On a message that undoes work: the id under which that work was sent.
UNDOES = "saga_undoes"
#: On a message whose result somebody awaits outside of all tasks: what stands for its arguments.
ASKED = "saga_asked"
#: How often the library has redelivered this message later, because the store was unavailable.
REDELIVERIES = "saga_redeliveries"
#: How often a message was retried because its step has raised; Celery's own retries are not counted.
STEP_RETRIES = "saga_retries"
#: What is left of the pause before such a retry when the message arrives, in milliseconds; absent: nothing.
PAUSE_LEFT = "saga_pause_left"
#: Since when a message is deferred, in milliseconds since the epoch.
DEFERRED_SINCE = "saga_deferred_since"
#: How often a deferred message has looked for its instance in vain.
LOOKS = "saga_looks"
#: On a message that has waited with an instance.
WAITED = "saga_waited"

_MAX_CHARACTERS = 255
#: Eleven years: no message may be deferred for so long.
_LONGEST_DEFERRED_MS = 11 * 366 * 86_400_000
#: RabbitMQ accepts the headers of a message in one frame, of 128 KiB with all other properties in it.
_RETURN_ADDRESS_BYTES = 32_768
_CAME = frozenset({"", *ReplyKind})
#: More retries, or redeliveries, than any message has.
_MANY = 1_000_000


def stamped_causation(request: Any) -> dict[str, str]:
    """Return the causation in the headers of a running task's message; malformed entries are left out."""
    found = _header(request, CAUSATION)
    if not isinstance(found, Mapping):
        return {}
    pairs = list(found.items())[-MAX_CAUSATION:]
    return {saga: instance for saga, instance in pairs if is_name(saga) and is_name(instance)}


def address_headers(instance_id: str, timeout: str, due_at: int = 0) -> dict[str, Any]:
    """Return the headers of a timeout; an occurrence of a series has its due time, in milliseconds since the epoch."""
    return {ADDRESS: {"instance": instance_id, "timeout": timeout} | ({"due": due_at} if due_at else {})}


def read_address(request: Any) -> Addressed | None:
    """Return the address of a task's message, if it is a timeout, or the outcome of a request.

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
            failure = found.get("failure")
            kind, has_value = failure if is_name(failure) else "", found.get("has_value") is not False
            return Addressed(instance, id, came, has_value, kind, _due_at(request, found))
    raise InvalidMessage(task_of(request), [(ADDRESS, "the header is no address")])


def _due_at(request: Any, address: Mapping[str, Any]) -> int:
    """Return when an occurrence of a series was due; 0 for any other message, and for one that failed and is tried again."""
    due_at = address.get("due")
    is_retried = read_retries(request) > 0 or read_step_retries(request) > 0 or read_retry_of(request) != ""
    return due_at if isinstance(due_at, int) and not is_retried else 0


def answer_headers(instance_id: str, request: str, came: ReplyKind, failure: str = "") -> dict[str, Any]:
    """Return the headers of the outcome of a request; of a failure also its kind."""
    address = {"instance": instance_id, "request": request, "came": came.value}
    return {ADDRESS: {**address, "failure": failure} if failure else address}


def is_answer(request: Any) -> bool:
    """Return whether a task's message is the answer to a request."""
    found = _header(request, ADDRESS)
    return isinstance(found, Mapping) and found.get("came") == ReplyKind.ANSWER


def answer_headers_to(task: str, address: ReturnAddress, *, has_value: bool = True) -> dict[str, Any]:
    """Return the headers of the answer to a request: if it cannot be handled, its failure goes to the step for failures.

    A gather's member is an exception: it is complete once the answer's dead letter is retried, as its first outcome counts.

    Raises:
        InvalidMessage: They are larger than a broker accepts.
    """
    headers = answer_headers(address.instance, address.request, ReplyKind.ANSWER)
    if not has_value:
        headers[ADDRESS]["has_value"] = False
    if address.otherwise is None or address.otherwise.task == GATHER:
        return headers
    return headers | return_address_headers(task, address.of_failures)


def return_address_headers(task: str, address: ReturnAddress) -> dict[str, Any]:
    """Return the headers of a message that requests an answer.

    Raises:
        InvalidMessage: They are larger than a broker accepts.
    """
    text = to_json(address.to_json())
    if len(text) > _RETURN_ADDRESS_BYTES:
        given, allowed = "the arguments of then=, otherwise= and progress=", f"{_RETURN_ADDRESS_BYTES:,} are allowed"
        problem = f"{given} have {len(text)} bytes, {allowed}"
        raise InvalidMessage(task, [("", f"{problem}: keep them in the state")])
    return {RETURN_ADDRESS: text.decode()}


def serialized_target(target: Target) -> Target:
    """Return a target as it is now, unaffected by later changes of its arguments.

    Raises:
        InvalidMessage: They cannot be encoded, or are larger than a return address may be.
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
    """Return the return address of a task's message, if it requests an answer; ``None`` if that is malformed."""
    found = _header(request, RETURN_ADDRESS)
    if not isinstance(found, str) or len(found) > _RETURN_ADDRESS_BYTES:
        return None
    try:
        return ReturnAddress.from_json(from_json(found))
    except (ValueError, TypeError):  # a TypeError of a lone surrogate
        return None


def read_message_id(request: Any) -> str:
    """Return the id under which a message is journaled: the id that its producer set, else the task's id."""
    named = _header(request, MESSAGE_ID)
    return named if isinstance(named, str) and named else id_of(request) or str(uuid4())


def read_publication(request: Any) -> str:
    """Return the publication of a task's message; empty if the message has none."""
    found = _header(request, PUBLICATION)
    return found if is_name(found) else ""


def read_question(request: Any) -> str:
    """Return what stands for the arguments of a message whose result somebody awaits; empty for any other message."""
    found = _header(request, ASKED)
    return found if is_name(found) else ""


def read_retry_of(request: Any) -> str:
    """Return the id of the dead letter whose message is retried; empty if the message is not a retry of one."""
    found = _header(request, RETRY_OF)
    return found if is_name(found) else ""


def check_message_id(step: str, named: object) -> None:
    """Refuse a producer's message id that no store could keep.

    Raises:
        InvalidMessage: It is not a text of 1 to 255 printable characters.
    """
    if named is not None and not is_name(named):
        raise InvalidMessage(step, [(MESSAGE_ID, f"the header is no text of 1 to {_MAX_CHARACTERS} printable characters")])


def is_name(value: object) -> TypeGuard[str]:
    """Return whether every store can keep a value as a name or an id: a text of 1 to 255 printable characters."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_CHARACTERS and value.isprintable()


def read_redeliveries(request: Any) -> int:
    """Return how often the library has redelivered the message later."""
    return count_of(_header(request, REDELIVERIES))


def read_step_retries(request: Any) -> int:
    """Return how often the message was retried because its step has raised."""
    return count_of(_header(request, STEP_RETRIES))


def read_pause_left(request: Any) -> int:
    """Return what is left of the pause before a retry, in milliseconds."""
    value = _header(request, PAUSE_LEFT)
    return value if isinstance(value, int) and value > 0 else 0


def read_deferred_since(request: Any, now: int) -> int:
    """Return since when a message is deferred; now if it is not, or claims to be since a time to come. Milliseconds."""
    value = _header(request, DEFERRED_SINCE)
    is_time = isinstance(value, int) and not isinstance(value, bool) and now - _LONGEST_DEFERRED_MS < value < now
    return int(value) if is_time else now  # type: ignore[call-overload]


def read_looks(request: Any) -> int:
    """Return how often a deferred message has looked for its instance in vain."""
    return count_of(_header(request, LOOKS))


def read_waited(request: Any) -> bool:
    """Return whether a message has waited with an instance."""
    return _header(request, WAITED) is True


def read_retries(request: Any) -> int:
    """Return how often the task of a message was retried."""
    return count_of(request.retries)


def headers_of(request: Any) -> Mapping[str, Any]:
    """Return the headers of a request that are not Celery's own."""
    headers = request.headers
    return headers if isinstance(headers, dict) else {}


def task_of(request: Any) -> str:
    """Return the name of a message's task; empty if the message names none."""
    return str(request.__dict__.get("task", ""))


def texts_of(request: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the headers of these names that a message has, and that are texts."""
    found = ((name, _header(request, name)) for name in names)
    return {name: value for name, value in found if isinstance(value, str)}


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
    """Put the publication on a message, unless it comes from a commit: its task may be sent again under the same id.

    A message to a step, or one with a producer's id, is identified by the id alone.
    """
    if headers.keys().isdisjoint((PUBLICATION, MESSAGE_ID, STEP, CAUSE, CAUSATION)):
        headers[PUBLICATION] = new(str(headers.get("id")))


def hand_over(headers: dict[str, Any], request: Any, publication: str) -> None:
    """Copy the headers of a task's message to a message that ``replace`` sends in its place; ``retry`` copies them itself.

    To a plain task it is another publication under the same id: its own publications differ from those of the replaced task. A
    retry, or a message to a step, keeps the publication.
    """
    is_same = STEP in headers or count_of(headers.get("retries")) > read_retries(request)
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
    """Return whether a message has the headers that ``stamp`` sets."""
    return CAUSE in headers or CAUSATION in headers


def _header(request: Any, name: str) -> object:
    """Read a header. Celery merges headers into the request, except for eager tasks, which have them in ``headers`` alone.

    A header may have the name of one of the request's methods, and hide it: they are not called.
    """
    value = request.__dict__.get(name)
    return headers_of(request).get(name) if value is None else value


def count_of(value: object) -> int:
    """Return a count that a header holds; 0 if it holds none, or one that no message has."""
    return value if isinstance(value, int) and 0 <= value < _MANY else 0
