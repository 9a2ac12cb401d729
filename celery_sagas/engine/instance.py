"""A live instance during one run: its record, its state, and what the store has indexed of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from celery_sagas.core.codec import load
from celery_sagas.core.context import MessageView, SagaView, Sending, StepContext
from celery_sagas.core.correlation import Address
from celery_sagas.core.definition import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.engine.alternates import Keys, indexed
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
    indexed: Keys


def begin(saga: SagaDefinition, address: Address, message: MessageView, sending: Sending) -> Instance:
    """Make an instance for its first message: its key is set, and every field that has a default (NS-03)."""
    instance_id = str(uuid4())
    view = SagaView(instance_id, saga.name, address.text, 0, True, None, None, message)
    state = saga.cls.model_construct(None, **address.values)
    context = attach(state, view, sending)
    return Instance(saga, instance_id, address.text, None, state, context, {}, {})


def revive(saga: SagaDefinition, record: Record, message: MessageView | None, sending: Sending | None) -> Instance:
    """Make an instance from its record; without ``sending`` it is a read-only copy.

    Raises:
        NewerState: Newer code wrote it.
        UnreadableState: It cannot be decoded.
    """
    state, unknown = load(saga, record.key, record.data, record.schema_version)
    created, updated = _aware(record.created_at), _aware(record.updated_at)
    view = SagaView(record.id, saga.name, record.key, record.version, False, created, updated, message)
    context = attach(state, view, sending)
    return Instance(saga, record.id, record.key, record, state, context, unknown, indexed(record.pending))


def attach(state: State, view: SagaView, sending: Sending | None) -> StepContext:
    """Give a state its context."""
    state._context = context = StepContext(view, sending)
    return context


def _aware(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
