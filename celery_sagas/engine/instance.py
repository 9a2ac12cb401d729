"""A live instance during one run: its record, its state, and what the store has indexed of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from celery_sagas.core.codec import load
from celery_sagas.core.context import MessageView, SagaView, StepContext
from celery_sagas.core.correlation import Address
from celery_sagas.core.definition import SagaDefinition
from celery_sagas.core.ids import placed_id
from celery_sagas.core.pending import Keys, Pending, Timeouts, due_times, read_pending
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
    lacks_timeout: bool = False  #: the timeout that is handled was handled, replaced or withdrawn


def begin(saga: SagaDefinition, address: Address, message: MessageView, sending: Sending, place: str) -> Instance:
    """Make an instance for its first message: its key is set, and every field that has a default (NS-03)."""
    instance_id = placed_id(str(uuid4()), place)
    view = SagaView(instance_id, saga.name, address.text, 0, True, None, None, message)
    state = saga.cls.model_construct(None, **address.values)
    context = attach(state, view, sending, Timeouts({}))
    return Instance(saga, instance_id, address.text, None, state, context, {}, {})


def revive(
    saga: SagaDefinition, record: Record, message: MessageView | None, sending: Sending | None, timeout: str = ""
) -> Instance:
    """Make an instance from its record; without ``sending`` it is a read-only copy.

    Args:
        saga: Its definition.
        record: As it was found.
        message: The one that is handled.
        sending: Where its step's messages go.
        timeout: The id of the timeout that is handled, if one is; ``lacks_timeout`` says whether it is still there.

    Raises:
        NewerState: Newer code wrote it.
        UnreadableState: It cannot be decoded.
    """
    pending = _pending(record)
    timeouts = Timeouts(dict(pending.timeouts), more=pending.more)
    lacks_timeout = timeout != "" and not timeouts.take(timeout)
    state, unknown = load(saga, record.key, record.data, record.schema_version)
    created, updated = _aware(record.created_at), _aware(record.updated_at)
    view = SagaView(record.id, saga.name, record.key, record.version, False, created, updated, message, due_times(timeouts.kept))
    context = attach(state, view, sending, timeouts)
    return Instance(saga, record.id, record.key, record, state, context, unknown, pending.keys, lacks_timeout)


def attach(state: State, view: SagaView, sending: Sending | None, timeouts: Timeouts) -> StepContext:
    """Give a state its context."""
    context = StepContext(view, sending, timeouts)
    object.__setattr__(state, "_context", context)  # a slot: no need to ask pydantic
    return context


def _pending(record: Record) -> Pending:
    try:
        return read_pending(record.pending)
    except ValueError as exc:
        raise UnreadableState(record.saga, record.key, str(exc)) from exc


def _aware(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
