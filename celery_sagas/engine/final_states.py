"""The final state of a finished instance: the journal's entry of its completion keeps it, if its saga says so."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import from_json

from celery_sagas.clock import LAST_MS
from celery_sagas.core.codec import validation_problems
from celery_sagas.core.encoding import PROBLEM, REMEDY, UndecodedError, check_decoded
from celery_sagas.core.pending import NOTHING
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.engine.instance import load_instance
from celery_sagas.engine.outcomes import Outcome, read_entry
from celery_sagas.errors import UnreadableState, problems_text
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Entry, Record

#: The part of an entry's details that has the final state.
FINAL: Final = "final"


class FinalState(BaseModel):
    """A final state, as it is stored."""

    data: str  #: the state, as JSON text
    schema_version: int
    #: Milliseconds since the epoch; ``None``: with this very message.
    created_at: int | None = Field(default=None, ge=0, le=LAST_MS)


def final_state(saga: SagaDefinition, data: str, created_at: datetime | None) -> dict[str, Any]:
    """Return what the entry of a completion keeps of an instance, in values of JSON.

    Args:
        saga: Its definition.
        data: Its state, encoded.
        created_at: When it was created; ``None`` if it completes with its first message.
    """
    created_ms = None if created_at is None else round(created_at.timestamp() * 1000)
    return FinalState(data=data, schema_version=saga.schema_version, created_at=created_ms).model_dump(exclude_none=True)


def completion(backend: Backend, saga: SagaDefinition, entry: Entry) -> Outcome[Any]:
    """Return the outcome that the entry of a completion records, with the final state while that is kept.

    Raises:
        NewerState: Newer code wrote the state.
        UnreadableState: It cannot be decoded.
        StoreUnavailable: The store cannot be reached.
    """
    outcome = read_entry(entry)
    if saga.keep_ms is None:
        return outcome
    try:
        check_decoded(entry.detail)
        final = from_json(entry.detail).get(FINAL)
    except UndecodedError as exc:
        raise UnreadableState(saga.name, entry.key, PROBLEM, REMEDY) from exc
    except ValueError as exc:
        raise UnreadableState(saga.name, entry.key, f"the entry of its completion: {exc}") from exc
    if final is None or backend.outbox.time() >= entry.at + saga.keep_ms:
        return outcome
    return outcome._replace(state=_load(saga, entry, final))


def _load(saga: SagaDefinition, entry: Entry, final: Mapping[str, Any]) -> State:
    """Return a read-only copy of the instance, as it was found last."""
    try:
        kept = FinalState.model_validate(final)
    except ValidationError as exc:
        raise UnreadableState(saga.name, entry.key, f"its final state: {problems_text(validation_problems(exc))}") from exc
    created_at = entry.at if kept.created_at is None else kept.created_at
    about = (entry.version, kept.schema_version, kept.data, NOTHING, created_at, entry.at)
    return load_instance(saga, Record(entry.instance_id, entry.saga, entry.key, *about))
