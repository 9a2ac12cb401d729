"""Questions from outside a step: read-only copies, and how an instance ended."""

from collections.abc import Mapping
from typing import Any

from celery_sagas.core.definition import SagaDefinition
from celery_sagas.core.keys import KeyProperty, key_text
from celery_sagas.engine.instance import revive
from celery_sagas.errors import CorrelationError, DefinitionError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Entry, Lookup


def copy_of(backend: Backend, saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Any:
    """Return a fresh read-only copy of an instance, or ``None``."""
    record = backend.sagas.find(lookup_of(saga, key, by)).record
    return None if record is None else revive(saga, record, None, None).state


def outcome_of(backend: Backend, saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Entry | None:
    """Return the journal's last entry of the newest finished instance with this key."""
    return backend.journal.outcome_of(saga.names, journal_key(saga, lookup_of(saga, key, by)))


def journal_key(saga: SagaDefinition, lookup: Lookup) -> str:
    """Return the key under which the journal knows what is looked for.

    Raises:
        DefinitionError: It is looked up by an alternate key.
    """
    if lookup.property != KEY:
        remedy = f"once it has completed it is found by {' and '.join(saga.correlate_by)} alone"
        raise DefinitionError(saga.cls.__qualname__, f"the journal knows no {lookup.property}", remedy)
    return lookup.value


def lookup_of(saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Lookup:
    """Return where to look for a key, or for properties by name.

    Raises:
        DefinitionError: They are neither the correlation key nor one alternate key.
        CorrelationError: A value is no key.
    """
    parts = {part.field: part for part in saga.keys.key}
    if key is not None and not by:
        values = key if len(parts) > 1 and isinstance(key, tuple) else (key,)
        if len(values) == len(parts):
            return Lookup(saga.names, KEY, _text(saga, parts, dict(zip(parts, values, strict=True))), saga.is_spread)
    elif key is None and by.keys() == parts.keys():
        return Lookup(saga.names, KEY, _text(saga, parts, by), saga.is_spread)
    elif key is None and len(by) == 1 and by.keys() <= saga.keys.alternates.keys():
        (name,) = by
        return Lookup(saga.names, name, _text(saga, {name: saga.keys.alternates[name]}, by))
    if key is None and not by:
        raise CorrelationError(f"A look-up of {saga.cls.__qualname__}", "the key is null")
    given = ", ".join([*([repr(key)] if key is not None else []), *by])
    raise DefinitionError(saga.cls.__qualname__, f"it cannot be looked up by {given}", _by_key(saga))


def _text(saga: SagaDefinition, parts: Mapping[str, KeyProperty], values: Mapping[str, object]) -> str:
    try:
        return key_text([part.text(part.convert(values[name])) for name, part in parts.items()])
    except ValueError as exc:
        raise CorrelationError(f"A look-up of {saga.cls.__qualname__}", f"{', '.join(parts)}: {exc}") from exc


def _by_key(saga: SagaDefinition) -> str:
    alternates = f", or by {' or '.join(saga.also_by)}" if saga.also_by else ""
    return f"look it up by {' and '.join(saga.correlate_by)}{alternates}; others are declared with also_by="
