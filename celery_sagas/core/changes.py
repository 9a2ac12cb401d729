"""What a step has changed of the state, as the journal keeps it: the names of fields, and their values before and after."""

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal, get_args, get_origin

from pydantic_core import from_json, to_json

from celery_sagas.core.codec import encoded_fields
from celery_sagas.core.hidden import HIDDEN, fields_in, mark, marked, replaced
from celery_sagas.core.history import canonical, ordered
from celery_sagas.core.keys import unwrap
from celery_sagas.core.nesting import LEVELS_KEPT, is_deeper
from celery_sagas.core.saga import VALUES, SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.errors import BUGS

#: The parts of an entry's details: the names of the changed fields, or ``MANY``; their values; sizes of those not kept.
CHANGED: Final = "changed"
CHANGED_VALUES: Final = "values"
CHANGED_SIZES: Final = "sizes"
#: In the place of the names, where the state is too large to be compared, or too much has changed.
MANY: Final = "many"
#: How long a state may be that is compared, how many fields are named, and how long their names are together. Characters.
MOST_COMPARED: Final = 65_536
MOST_NAMED: Final = 50
_MOST_IN_NAMES: Final = 4_096
#: How large one value may be that is kept, and all values of an entry together. Bytes of JSON.
MOST_OF_A_VALUE: Final = 1_024
MOST_OF_ALL_VALUES: Final = 16_384
#: Stands where there is no field; no value equals it.
_ABSENT: Final = object()


def changes_of(saga: SagaDefinition, before: str | None, after: str, state: State) -> dict[str, Any]:
    """Return what the journal keeps of the difference of two states, in values of JSON.

    It names the fields that have another value, in their order; of an instance's first message, those that are not as their
    defaults are, without the correlation key. A set in another order is the same.

    Args:
        saga: Its definition.
        before: The state before, as JSON text; ``None`` with the first message.
        after: The state after it.
        state: The same, as an object.
    """
    if before == after:
        return {CHANGED: []}
    if len(after) > MOST_COMPARED or (before is not None and len(before) > MOST_COMPARED):
        return {CHANGED: MANY}
    cls: type[State] = saga.cls
    new = from_json(after)
    old = {**_defaults(cls), **{name: new[name] for name in saga.correlate_by}} if before is None else from_json(before)
    names = changed_names(old, new)
    if before is not None and (equal := {name for name in names if name in new and old.get(name, _ABSENT) == new[name]}):
        read = _read_today(cls, before)
        names = [name for name in names if name not in equal or not is_same(read.get(name, _ABSENT), new[name])]
    if names and _has_sets(cls):
        names = [name for name in names if not _is_reordered(state.__dict__.get(name), old.get(name), new.get(name))]
    if len(names) > MOST_NAMED or sum(map(len, names)) > _MOST_IN_NAMES:
        return {CHANGED: MANY}
    return {CHANGED: names, **_values(saga, names, old, new)} if names and saga.changes == VALUES else {CHANGED: names}


def changed_names(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields that differ: those of the new ones in their order, then those that are gone."""
    changed = [name for name, value in new.items() if not is_same(old.get(name, _ABSENT), value)]
    return changed if old.keys() <= new.keys() else [*changed, *(name for name in old if name not in new)]


def is_same(old: Any, new: Any) -> bool:
    """Return whether two JSON values have the same text but for the order of keys: ``0`` and ``False`` are equal, and differ."""
    if old != new:
        return False
    return old is new or isinstance(old, str) or to_json(old) == to_json(new) or canonical(old) == canonical(new)


def _read_today(cls: type[State], text: str) -> Mapping[str, Any]:
    """Return the JSON values of a state as today's code writes it again: it may write ``0`` of a float as ``0.0``."""
    try:
        return encoded_fields(cls.model_validate_json(text))
    except BUGS:  # older code wrote it
        return {}


def _values(saga: SagaDefinition, names: Sequence[str], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of fields before and after, without hidden ones; of those too large, or nested too deeply, the sizes."""
    left, values, sizes = MOST_OF_ALL_VALUES, dict[str, list[Any]](), dict[str, list[int]]()
    for name in names:
        kept: list[Any] = []
        large: list[int] = []
        for fields in (old, new):
            value = _without_hidden(saga, name, fields.get(name))
            text = to_json(value)
            size = len(text)
            is_kept = size <= min(left, MOST_OF_A_VALUE) and not is_deeper(text.decode(), LEVELS_KEPT)
            left -= size if is_kept else 0
            kept.append(value if is_kept else None)
            large.append(0 if is_kept else size)
        values[name] = kept
        if any(large):
            sizes[name] = large
    return {CHANGED_VALUES: values, CHANGED_SIZES: sizes} if sizes else {CHANGED_VALUES: values}


def _without_hidden(saga: SagaDefinition, name: str, value: Any) -> Any:
    """Return a value with a mark in the place of what is hidden: also of a field that this code does not know, if any is."""
    info = saga.cls.model_fields.get(name)
    if value is None or not saga.hidden or (info is not None and name not in saga.hidden):
        return value
    try:
        return HIDDEN if info is None else replaced(marked(info), value, mark)
    except BUGS:  # it is not of the form that its annotation says: older code wrote it
        return HIDDEN


@lru_cache(maxsize=4096)
def _defaults(cls: type[State]) -> Mapping[str, Any]:
    """Return the JSON values that the fields have by default; without those whose factory needs a field that has none."""
    values: dict[str, Any] = {}
    for name, info in cls.model_fields.items():
        with suppress(*BUGS):
            if not info.is_required():
                others = {"validated_data": values} if getattr(info, "default_factory_takes_validated_data", False) else {}
                values[name] = info.get_default(call_default_factory=True, **others)
    state = cls.__new__(cls)  # model_construct() would call a model_post_init that may need the key
    parts: dict[str, Any] = {
        "__dict__": values,
        "__pydantic_fields_set__": set(),
        "__pydantic_extra__": None,
        "__pydantic_private__": None,
    }
    for part, value in parts.items():
        object.__setattr__(state, part, value)
    return encoded_fields(state)


@lru_cache(maxsize=4096)
def _has_sets(cls: type[State]) -> bool:
    """Return whether a field may hold sets, whose order differs from process to process."""
    try:
        return any(_holds_set(info.annotation, frozenset()) for info in cls.model_fields.values())
    except BUGS:  # an annotation that only pydantic can resolve
        return True


def _holds_set(annotation: Any, within: frozenset[Any]) -> bool:
    bare, _ = unwrap(annotation)
    kind = get_origin(bare) or bare
    if isinstance(kind, type) and issubclass(kind, Set):
        return True
    if get_origin(bare) is Literal or bare in within:
        return False
    return any(_holds_set(part, within | {bare}) for part in (*get_args(bare), *fields_in(kind)))


def _is_reordered(value: object, old: Any, new: Any) -> bool:
    """Return whether two encoded forms of a value differ in the order of its sets alone."""
    return is_same(ordered(value, old), ordered(value, new))
