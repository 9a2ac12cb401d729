"""A live instance during one run: its record, its state, and what the store has indexed of it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from celery_sagas.core.codec import load
from celery_sagas.core.context import NO_MESSAGE, MessageView, SagaView, StepContext
from celery_sagas.core.conversation import Addressed, Conversation
from celery_sagas.core.correlation import Address
from celery_sagas.core.definition import SagaDefinition
from celery_sagas.core.ids import placed_id
from celery_sagas.core.pending import Keys, OpenRequests, Pending, Timeouts, due_times, read_pending
from celery_sagas.core.sending import Sending
from celery_sagas.core.state import State
from celery_sagas.errors import UnreadableState
from celery_sagas.stores.records import Record


@dataclass(slots=True)
class Instance:
    """One instance while a handler runs on it."""

    saga: SagaDefinition
    id: str
    key: str
    record: Record | None  #: as it was found; ``None`` for one that this message creates
    state: State
    context: StepContext
    unknown: dict[str, Any]  #: stored fields that this code does not know
    indexed: Keys  #: the alternate keys that the store has indexed for it
    is_withdrawn: bool = False  #: what it is addressed by was handled, replaced or withdrawn
    is_late: bool = False  #: what came of a request comes after its deadline


def begin(
    saga: SagaDefinition,
    address: Address,
    message: MessageView,
    sending: Sending,
    place: str,
    originator: dict[str, Any] | None = None,
) -> Instance:
    """Make an instance for its first message: its key is set, and every field that has a default.

    Args:
        saga: Its definition.
        address: Its key.
        message: The one that is handled.
        sending: Where its step's messages go.
        place: Where the store will keep it.
        originator: The return address of the message, if it asks for an answer.
    """
    instance_id = placed_id(str(uuid4()), place)
    conversation = Conversation(originator=originator)
    asked = originator["request"] if originator else None
    view = SagaView(instance_id, saga.name, address.text, 0, True, None, None, message, originator=asked)
    state = saga.cls.model_construct(None, **address.values)
    context = attach(state, view, sending, Timeouts({}), conversation)
    return Instance(saga, instance_id, address.text, None, state, context, {}, {})


def revive(
    saga: SagaDefinition,
    record: Record,
    message: MessageView = NO_MESSAGE,
    sending: Sending | None = None,
    addressed: Addressed | None = None,
    steps: Collection[str] = (),
) -> Instance:
    """Make an instance from its record; without ``sending`` it is a read-only copy.

    Args:
        saga: Its definition.
        record: As it was found.
        message: The one that is handled, if one is.
        sending: Where its step's messages go.
        addressed: What is handled, if that is a timeout, or came of a request; ``is_withdrawn`` says whether it is waited for.
        steps: The names of the step that handles it.

    Raises:
        NewerState: Newer code wrote it.
        UnreadableState: It cannot be decoded.
    """
    pending = _pending(record)
    timeouts = Timeouts(dict(pending.timeouts), more=pending.more)
    conversation = Conversation(dict(pending.requests), originator=pending.originator)
    is_withdrawn = is_late = False
    if addressed:
        is_withdrawn, is_late = _take(timeouts, conversation, addressed, steps)
        message = message._replace(late=is_late)
    state, unknown = load(saga, record.key, record.data, record.schema_version)
    created, updated = _aware(record.created_at), _aware(record.updated_at)
    asked = pending.originator["request"] if pending.originator else None
    due, requests = due_times(timeouts.kept), OpenRequests(conversation.kept)
    view = SagaView(record.id, saga.name, record.key, record.version, False, created, updated, message, due, requests, asked)
    context = attach(state, view, sending, timeouts, conversation)
    return Instance(saga, record.id, record.key, record, state, context, unknown, pending.keys, is_withdrawn, is_late)


def _take(timeouts: Timeouts, conversation: Conversation, addressed: Addressed, steps: Collection[str]) -> tuple[bool, bool]:
    """Take out what is handled; return whether it is not waited for any more, and whether it is late."""
    if not addressed.came:
        return not timeouts.take(addressed.id), False
    request = conversation.take(addressed.id, addressed.came, steps)
    return request is None, request is not None and request.is_overdue


def attach(state: State, view: SagaView, sending: Sending | None, timeouts: Timeouts, conversation: Conversation) -> StepContext:
    """Give a state its context."""
    context = StepContext(view, sending, timeouts, conversation)
    object.__setattr__(state, "_context", context)  # a slot: no need to ask pydantic
    return context


def _pending(record: Record) -> Pending:
    try:
        return read_pending(record.pending)
    except ValueError as exc:
        raise UnreadableState(record.saga, record.key, str(exc)) from exc


def _aware(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
