"""What messages have changed of the states of instances, as the journal says; redacted."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from celery_sagas.clock import LAST_MS, utc_time
from celery_sagas.core.changes import CHANGED, CHANGED_SIZES, CHANGED_VALUES, MANY, MOST_NAMED
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.operate.facts import detail_of
from celery_sagas.operate.redact import redacted
from celery_sagas.operate.view import author_of
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import KEY, Entry, Lookup

#: The act that changes a state.
_PATCH: Final = "patch"


class ChangedValue(NamedTuple):
    """The value of a field before and after a message, as values of JSON, redacted."""

    before: Any  #: ``None`` also if there was no such field, or if the value was too large to be kept
    after: Any
    before_size: int = 0  #: of a value that was too large to be kept: bytes of JSON
    after_size: int = 0


_NO_VALUES: Final[Mapping[str, ChangedValue]] = MappingProxyType({})


class Changed(NamedTuple):
    """What a message, or the act of an operator, has changed of the state."""

    version: int  #: of the instance after it
    at: datetime  #: when it was committed: aware, UTC
    by: str  #: the step, or the operator with the act, such as "ann (patch)"
    names: tuple[str, ...]  #: of the fields, also of hidden ones; with the first message, of those that are not as by default
    many: bool = False  #: whether it was too much to be named: more than 50 fields, or a state of more than 64 kB
    values: Mapping[str, ChangedValue] = _NO_VALUES  #: of these fields, by name; if the saga keeps them


def read_changes(backend: Backend, saga: SagaDefinition, lookup: Lookup, hidden: Sequence[str], limit: int) -> list[Changed]:
    """Return what the newest messages to an instance, and acts on it, have changed, oldest first; of a key, to the newest.

    Args:
        backend: Stores it.
        saga: Its saga.
        lookup: The look-up of it; one that has ended is found by its key alone.
        hidden: Patterns of the names that are hidden.
        limit: How many entries of the journal are read.

    Raises:
        StoreError: The store is away, or the record is damaged.
    """
    key, id = lookup.value, ""
    if lookup.property != KEY:
        record = backend.sagas.find(lookup).record
        if record is None:
            return []
        key, id = record.key, record.id
    entries = backend.journal.history(saga.names, key, limit)
    id = id or next((entry.instance_id for entry in reversed(entries) if entry.instance_id), "")
    own = (entry for entry in entries if entry.instance_id == id)
    return [changed for entry in own if (changed := with_values(saga, entry, hidden)) is not None]


def changed_in(entry: Entry) -> Changed | None:
    """Return what an entry says that it has changed, without the values; ``None`` if it says nothing of that."""
    detail = detail_of(entry)
    listed = detail.get("fields" if detail.get("act") == _PATCH else CHANGED)
    if listed != MANY and not isinstance(listed, list):
        return None
    names = [] if listed == MANY else [name for name in listed if isinstance(name, str)]
    is_many = listed == MANY or len(names) > MOST_NAMED
    at = utc_time(min(max(entry.at, 0), LAST_MS))
    return Changed(entry.version, at, author_of(entry), () if is_many else tuple(names), is_many)


def with_values(saga: SagaDefinition, entry: Entry, hidden: Sequence[str]) -> Changed | None:
    """Return what an entry says that it has changed, with the values that it has.

    Args:
        saga: Its saga.
        entry: The entry.
        hidden: Patterns of the names that are hidden.
    """
    changed, detail = changed_in(entry), detail_of(entry)
    values, sizes = (_pairs(detail.get(name)) for name in (CHANGED_VALUES, CHANGED_SIZES))
    if changed is None or not values:
        return changed
    before, after = (redacted(saga, {name: pair[side] for name, pair in values.items()}, hidden) for side in (0, 1))
    return changed._replace(
        values={
            name: ChangedValue(before[name], after[name], *map(_size, sizes.get(name, (0, 0))))
            for name in changed.names
            if name in values
        }
    )


def _pairs(stored: Any) -> Mapping[str, Sequence[Any]]:
    """Return the pairs that the details of an entry have by the names of fields."""
    fields = stored.items() if isinstance(stored, dict) else ()
    return {name: pair for name, pair in fields if isinstance(pair, list) and len(pair) == 2}


def _size(stored: Any) -> int:
    return stored if isinstance(stored, int) else 0
