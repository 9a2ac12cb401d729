"""Queries from outside a step: read-only copies, the outcomes of finished instances, and waiting for either."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_sagas.core.keys import KeyProperty, key_text, text_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.final_states import completion
from celery_sagas.engine.instance import ReadOutcomes, load_instance, lookup_in, shown_property, unknown_outcomes
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.polling import Polling, poll, seconds_to_wait
from celery_sagas.engine.session import Session
from celery_sagas.errors import CorrelationError, DefinitionError, MisuseError, SagaNotFound, WaitTimeout
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, Lookup, Record


def copy_of(
    backend: Backend,
    saga: SagaDefinition,
    key: object,
    by: Mapping[str, object],
    read_outcomes: ReadOutcomes = unknown_outcomes,
) -> Any:
    """Return a fresh read-only copy of an instance, or ``None``."""
    record = backend.sagas.find(lookup_of(saga, key, by)).record
    return None if record is None else load_instance(saga, record, read_outcomes=read_outcomes)


def outcome_of(backend: Backend, saga: SagaDefinition, key: object, by: Mapping[str, object]) -> Outcome[Any] | None:
    """Return the journal's outcome of the message that ended the newest finished instance with this key."""
    entry = backend.journal.outcome_of(saga.names, journal_key(saga, lookup_of(saga, key, by)))
    return None if entry is None else completion(backend, saga, entry)


def wait_for(
    backend: Backend,
    saga: SagaDefinition,
    key: object,
    by: Mapping[str, object],
    *,
    until: Any,
    timeout: Any,
    read_outcomes: ReadOutcomes = unknown_outcomes,
) -> Polling[Any]:
    """Return what waits until a function of an instance's copy is true, and returns it; or, for ``"completed"``, the outcome.

    Raises:
        TypeError: ``until`` or ``timeout`` is of another type.
        ValueError: ``timeout`` is negative.
        DefinitionError: It is no key of this saga, or none that the journal records.
        CorrelationError: A value is no key.
        WaitTimeout: The condition was not met in time.
        SagaNotFound: The instance has completed, and the function was not true before.
    """
    wait, timeout_s = Wait(backend, saga, lookup_of(saga, key, by), read_outcomes), seconds_to_wait(timeout)
    over = partial(wait.over, timeout_s)
    if until == "completed":
        return poll(partial(wait.completed, journal_key(saga, wait.lookup)), timeout_s, over)
    if not callable(until):
        raise TypeError(f'until= takes a function of the state, or "completed", not {until!r}')
    return poll(partial(wait.met, until), timeout_s, over)


def refuse_in_task(call: str, session: Session | None) -> None:
    """Refuse to wait inside a task: that would block the worker that must handle the awaited message.

    Raises:
        MisuseError: A session is open, which means that a task runs.
    """
    if session is not None:
        raise MisuseError(
            f"{call}() was called inside a task, which would hold its worker up",
            "Go on in a step instead: one that is answered (send(…, then=step)), or that looks again later (schedule())",
        )


@dataclass
class Wait:
    """One wait; an instance that was found once is followed by its id, even if another instance takes its keys."""

    backend: Backend
    saga: SagaDefinition
    lookup: Lookup  #: of the instance, as requested
    read_outcomes: ReadOutcomes  #: of the members of its gathers
    seen: Record | None = None  #: the instance, as last found

    def met(self, until: Callable[[Any], object]) -> Any:
        """Return a copy of the instance if it meets the condition."""
        record = self._find()
        if record is None:
            if self.seen is not None:
                raise SagaNotFound(self.saga.name, *self._subject, True)
            return None
        copy = load_instance(self.saga, record, read_outcomes=self.read_outcomes)
        return copy if until(copy) else None

    def completed(self, key: str) -> Outcome[Any] | None:
        """Return how the newest completed instance with a key ended, unless the awaited instance is alive."""
        entry = None if self._find() is not None else self.backend.journal.outcome_of(self.saga.names, key)
        return None if entry is None else completion(self.backend, self.saga, entry)

    def over(self, timeout_s: float) -> WaitTimeout:
        """Return the error for a wait in vain."""
        version = self.seen.version if self.seen else 0
        return WaitTimeout(self.saga.name, *self._subject, timeout_s, version, self._was_completed())

    def _find(self) -> Record | None:
        lookup = self.lookup if self.seen is None else Lookup(self.saga.names, ID, self.seen.id)
        record = self.backend.sagas.find(lookup).record
        self.seen = record or self.seen
        return record

    def _was_completed(self) -> bool:
        if self.seen is not None or self.lookup.property != KEY:
            return False
        return self.backend.journal.outcome_of(self.saga.names, self.lookup.value) is not None

    @property
    def _subject(self) -> tuple[str, str]:
        """The property, as the user wrote it, and its value."""
        return shown_property(self.saga, self.lookup), self.lookup.value


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
        raise CorrelationError("", "the key is null", saga.cls.__qualname__)
    given = ", ".join([*([repr(key)] if key is not None else []), *by])
    raise DefinitionError(saga.cls.__qualname__, f"it cannot be looked up by {given}", _by_key(saga))


def _text(saga: SagaDefinition, parts: Mapping[str, KeyProperty], values: Mapping[str, object]) -> str:
    try:
        return key_text([part.text(part.convert(values[name])) for name, part in parts.items()])
    except ValueError as exc:
        raise CorrelationError("", f"{', '.join(parts)}: {exc}", saga.cls.__qualname__) from exc


def _instance_id(saga: SagaDefinition, value: object) -> str:
    if not isinstance(value, str):
        problem = f"id: {value!r} is no instance's id, which is text, as order.saga.id has it"
        raise CorrelationError("", problem, saga.cls.__qualname__)
    try:
        return text_of(value)
    except ValueError as exc:
        raise CorrelationError("", f"id: {exc}", saga.cls.__qualname__) from exc


def _by_key(saga: SagaDefinition) -> str:
    others = dict.fromkeys((*saga.also_by, "id")) if "id" not in saga.correlate_by else saga.also_by
    alternates = f", or by {' or '.join(others)}" if others else ""
    return f"look it up by {' and '.join(saga.correlate_by)}{alternates}; others are declared with also_by="
