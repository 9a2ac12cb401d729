"""Queries from outside a step: read-only copies, and the outcomes of finished instances."""

from collections.abc import Mapping
from typing import Any

from celery_sagas.core.keys import KeyProperty, key_text, text_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.instance import load_instance, lookup_in, shown_property
from celery_sagas.engine.outcomes import Outcome, read_entry
from celery_sagas.errors import CorrelationError, DefinitionError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, Lookup


def copy_of(backend: Backend, saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Any:
    """Return a fresh read-only copy of an instance, or ``None``."""
    record = backend.sagas.find(lookup_of(saga, key, by)).record
    return None if record is None else load_instance(saga, record)


def outcome_of(backend: Backend, saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Outcome | None:
    """Return the journal's outcome of the message that ended the newest finished instance with this key."""
    entry = backend.journal.outcome_of(saga.names, journal_key(saga, lookup_of(saga, key, by)))
    return None if entry is None else read_entry(entry)


def journal_key(saga: SagaDefinition, lookup: Lookup) -> str:
    """Return the key under which the journal records an instance.

    Raises:
        DefinitionError: It is looked up by an alternate key, or by the instance's id.
    """
    if lookup.property != KEY:
        remedy = f"once it has completed it is found by {' and '.join(saga.correlate_by)} alone"
        raise DefinitionError(saga.cls.__qualname__, f"the journal knows no {shown_property(saga, lookup)}", remedy)
    return lookup.value


def lookup_of(saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Lookup:
    """Return the lookup for a key, for properties by name, or for an instance's id.

    Raises:
        DefinitionError: They are neither the correlation key, nor one alternate key, nor the id.
        CorrelationError: A value is no key, or no id.
    """
    parts = {part.field: part for part in saga.keys.key}
    if key is not None and not by:
        values = key if len(parts) > 1 and isinstance(key, tuple) else (key,)
        if len(values) == len(parts):
            return lookup_in(saga, KEY, _text(saga, parts, dict(zip(parts, values, strict=True))))
    elif key is None and by.keys() == parts.keys():
        return lookup_in(saga, KEY, _text(saga, parts, by))
    elif key is None and len(by) == 1 and by.keys() <= saga.keys.alternate_keys.keys():
        (name,) = by
        return lookup_in(saga, name, _text(saga, {name: saga.keys.alternate_keys[name]}, by))
    elif key is None and by.keys() == {"id"}:
        return lookup_in(saga, ID, _instance_id(saga, by["id"]))
    if key is None and not by:
        raise CorrelationError(f"A look-up of {saga.cls.__qualname__}", "the key is null")
    given = ", ".join([*([repr(key)] if key is not None else []), *by])
    raise DefinitionError(saga.cls.__qualname__, f"it cannot be looked up by {given}", _by_key(saga))


def _text(saga: SagaDefinition, parts: Mapping[str, KeyProperty], values: Mapping[str, object]) -> str:
    try:
        return key_text([part.text(part.convert(values[name])) for name, part in parts.items()])
    except ValueError as exc:
        raise CorrelationError(f"A look-up of {saga.cls.__qualname__}", f"{', '.join(parts)}: {exc}") from exc


def _instance_id(saga: SagaDefinition, value: object) -> str:
    if not isinstance(value, str):
        problem = f"id: {value!r} is no instance's id, which is text, as order.saga.id has it"
        raise CorrelationError(f"A look-up of {saga.cls.__qualname__}", problem)
    try:
        return text_of(value)
    except ValueError as exc:
        raise CorrelationError(f"A look-up of {saga.cls.__qualname__}", f"id: {exc}") from exc


def _by_key(saga: SagaDefinition) -> str:
    others = dict.fromkeys((*saga.also_by, "id")) if "id" not in saga.correlate_by else saga.also_by
    alternates = f", or by {' or '.join(others)}" if others else ""
    return f"look it up by {' and '.join(saga.correlate_by)}{alternates}; others are declared with also_by="
