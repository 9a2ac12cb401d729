"""An instance while a step runs on it: its keys, and its state, created for the first message or loaded from its record."""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

from celery_sagas.clock import utc_time
from celery_sagas.core.codec import load
from celery_sagas.core.comparison import parts_of
from celery_sagas.core.context import NO_MESSAGE, MessageView, SagaView, StepContext
from celery_sagas.core.correlation import Address
from celery_sagas.core.encoding import PROBLEM, REMEDY, UndecodedError
from celery_sagas.core.keys import KeyProperty, key_text
from celery_sagas.core.pending import FORMAT, Keys, NewerFormat, Pending, read_pending
from celery_sagas.core.requests.requests import Request
from celery_sagas.core.requests.views import GatherView, MemberOutcomes, OpenGathers, OpenRequests
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sending import Sending
from celery_sagas.core.state import State
from celery_sagas.core.step import StepDefinition
from celery_sagas.core.timeouts import due_times
from celery_sagas.errors import InvalidState, MisuseError, NewerState, UnreadableState
from celery_sagas.stores.records import ID, KEY, Lookup, Record

#: Reads what has come of a gather's members, given its saga, the id of its instance, and the request.
ReadOutcomes = Callable[[SagaDefinition, str, Request], MemberOutcomes]
_NO_GATHERS: Mapping[str, GatherView] = MappingProxyType({})


def unknown_outcomes(saga: SagaDefinition, instance_id: str, request: Request) -> NoReturn:
    """Stand in for reading what has come of a gather, where that is not at hand.

    Raises:
        MisuseError: Always.
    """
    problem = f"what has come of the gather {request.id} of {saga.name} is not known in a replay, since no history keeps it"
    raise MisuseError(problem, "Keep in the state what a step finds in saga.gathers")


def create(
    saga: SagaDefinition, id: str, address: Address, message: MessageView, sending: Sending, requester: Mapping[str, Any] | None
) -> State:
    """Create the state of an instance for its first message: it sets the key, and every field that has a default.

    Args:
        saga: Its definition.
        id: The new instance's id.
        address: Its key.
        message: The message that is handled.
        sending: Collects the step's messages.
        requester: The return address of the message, if it requests an answer.
    """
    pending = Pending(requester=dict(requester) if requester else None)
    view = SagaView(id, saga.name, address.text, 0, True, None, None, message, requester=_request_of(pending))
    return attach(saga.cls.model_construct(None, **address.values), StepContext(view, sending, pending))


def load_instance(
    saga: SagaDefinition,
    record: Record,
    message: MessageView = NO_MESSAGE,
    sending: Sending | None = None,
    pending: Pending | None = None,
    read_outcomes: ReadOutcomes = unknown_outcomes,
) -> State:
    """Return the state of a record; without ``sending`` it is a read-only copy.

    Args:
        saga: Its definition.
        record: The record, as found.
        message: The message that is handled, if any.
        sending: Collects the step's messages.
        pending: Its pending map, if already read.
        read_outcomes: Reads what has come of the members of its gathers.

    Raises:
        NewerState: Newer code wrote it.
        UnreadableState: It cannot be decoded.
    """
    pending = pending or pending_of(record)
    state, unknown = load(saga, record.key, record.data, record.schema_version)
    created, updated = utc_time(record.created_at), utc_time(record.updated_at)
    due, requests, asked = due_times(pending.timeouts), OpenRequests(pending.requests), _request_of(pending)
    gathers = OpenGathers(pending.requests, partial(read_outcomes, saga, record.id)) if pending.requests else _NO_GATHERS
    deferred = tuple(each.view for each in pending.deferred) if pending.deferred else ()
    about = (record.version, False, created, updated, message, due, requests, gathers, asked, deferred, pending.is_undoing)
    view = SagaView(record.id, saga.name, record.key, *about)
    return attach(state, StepContext(view, sending, pending, unknown))


def attach(state: State, context: StepContext) -> State:
    """Give a state its context."""
    object.__setattr__(state, "_context", context)  # a slot, unknown to pydantic
    return state


def context_of(state: State) -> StepContext:
    """Return the context of a state."""
    context = state._context
    assert context is not None, "a state of an instance has a context"  # noqa: S101
    return context


def pending_of(record: Record) -> Pending:
    """Return the pending map of a record.

    Raises:
        NewerState: Newer code wrote it.
        UnreadableState: It cannot be decoded.
    """
    try:
        return read_pending(record.pending, record.updated_at)
    except NewerFormat as exc:
        raise NewerState(record.saga, record.key, exc.args[0], FORMAT, "pending map format") from exc
    except UndecodedError as exc:
        raise UnreadableState(record.saga, record.key, PROBLEM, REMEDY) from exc
    except ValueError as exc:
        raise UnreadableState(record.saga, record.key, str(exc)) from exc


def lookup_in(saga: SagaDefinition, property: str, value: str) -> Lookup:
    """Return the lookup for an instance of a saga."""
    return Lookup(saga.names, property, value, has_alternate_keys=bool(saga.also_by))


def shown_property(saga: SagaDefinition, lookup: Lookup) -> str:
    """Return the properties of a lookup, as the user writes them."""
    return {KEY: ", ".join(saga.correlate_by), ID: "id"}.get(lookup.property, lookup.property)


def key_of(saga: SagaDefinition, key: str, state: State) -> str:
    """Return the canonical text of the state's present correlation key."""
    try:
        return key_text([part.text(part.convert(getattr(state, part.field))) for part in saga.keys.key])
    except (ValueError, AttributeError) as exc:
        raise InvalidState(saga.name, key, [(", ".join(saga.correlate_by), str(exc))]) from exc


def alternate_keys_of(saga: SagaDefinition, key: str, state: State) -> Keys:
    """Return property and canonical text of the state's present alternate keys; those that are null are left out."""
    return _texts(saga, key, state, saga.keys.alternate_keys, (None,))


def tags_of(saga: SagaDefinition, key: str, state: State) -> Keys:
    """Return property and canonical text of what the state is listed by now; what is null, or an empty text, is left out."""
    return _texts(saga, key, state, saga.search_properties, (None, ""))


def _texts(
    saga: SagaDefinition, key: str, state: State, properties: Mapping[str, KeyProperty], left_out: tuple[object, ...]
) -> Keys:
    texts: Keys = {}
    for name, part in properties.items():
        value = getattr(state, name, None)
        if (value.value if isinstance(value, Enum) else value) in left_out:
            continue
        try:
            texts[name] = part.text(part.convert(value))
        except ValueError as exc:
            raise InvalidState(saga.name, key, [(name, str(exc))]) from exc
    return texts


def difference(before: Keys, after: Keys) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the keys or tags to add and those to remove, sorted, so that two commits lock them in the same order."""
    if before == after:
        return (), ()
    old, new = set(before.items()), set(after.items())
    return tuple(sorted(new - old)), tuple(sorted(old - new))


def unannotated_in(step: StepDefinition, state: State, arguments: Mapping[str, Any], error: InvalidState) -> list[str]:
    """Return the unannotated arguments that the handler has put where the state cannot be stored."""
    paths = {path.partition(".")[0] for path, _ in error.problems}
    fields = [value for name, value in state.__dict__.items() if name in paths]
    parts = [part for field in fields for part in (parts_of(field) or {}).values()]
    unannotated = sorted(step.arguments.unannotated & arguments.keys())
    for held in (fields, parts):  # an argument may happen to be the same object as a part, a short text above all
        if names := [name for name in unannotated if any(value is arguments[name] for value in held)]:
            return names
    return []


def _request_of(pending: Pending) -> str | None:
    """Return the id of the message that started the instance, if it waits for an answer."""
    return str(pending.requester["request"]) if pending.requester else None
