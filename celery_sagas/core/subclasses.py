"""Objects of a subclass of an annotated class: whether a value may hold one, and which of its fields would be lost."""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python
from typing_extensions import is_typeddict

from celery_sagas.core.comparison import Difference, fields_of, parts_of
from celery_sagas.core.keys import unwrap
from celery_sagas.errors import BUGS

_FLAT: Final = frozenset((str, int, float, bool, type(None), bytes, Decimal, UUID, datetime, date, time, timedelta))
_CONTAINERS: Final = frozenset((list, tuple, set, frozenset, deque))
_WITH_PARTS: Final = (BaseModel, Mapping, list, tuple, set, frozenset, deque, Iterator)
#: Without arguments they name no class, and their members are sent as what they are.
_OPEN: Final = frozenset((Any, list, tuple, set, frozenset, dict, deque))
_MISSING: Final = object()


class _Unknown:
    """A stand-in for the classes that an unreadable part of an annotation may name."""


@dataclass(frozen=True, eq=False)
class Named:
    """The classes that an annotation names, wherever in it: ``object`` for ``Any``."""

    classes: frozenset[type]

    @cached_property
    def exact(self) -> frozenset[type]:
        """The classes whose own objects are sent as they are: none of their bases is named beside them."""
        return frozenset(kind for kind in self.classes if sum(map(kind.__mro__.__contains__, self.classes)) == 1)

    @cached_property
    def is_any(self) -> bool:
        """Return whether it names no class, so that every object is sent as it is."""
        return self.classes == {object}

    @cached_property
    def is_flat(self) -> bool:
        """Return whether it names no class whose objects could lose a part: an object in its place is not read."""
        return all(kind in _FLAT or issubclass(kind, Enum) for kind in self.classes)

    def base_of(self, kind: type) -> type | None:
        """Return the base of a class that the annotation names."""
        return next((each for each in self.classes - {object, kind} if each in kind.__mro__), None)


ANY: Final = Named(frozenset((object,)))
UNKNOWN: Final = Named(frozenset((object, _Unknown)))


def named_in(annotation: Any) -> Named:
    """Return the classes that an annotation names; unknown ones where a part of it cannot be read."""
    try:
        return Named(frozenset(_classes(annotation)))
    except BUGS:  # a name that only pydantic can resolve; or it names itself
        return UNKNOWN


def listed(value: Any) -> Any:
    """Return an iterator's items as a list, since it can be read only once; any other value as it is."""
    return list(value) if isinstance(value, Iterator) else value


def is_exact(value: Any, named: Named) -> bool:
    """Return whether all objects in a value are surely of the annotated classes; it is rarely false without a reason."""
    kind: Any = type(value)
    if kind is dict or kind in _CONTAINERS:
        return _are_exact(value.values() if kind is dict else value, named)
    fields = _open_fields(kind, named)
    if not fields:
        return fields is not None
    return False not in [is_exact(getattr(value, name, None), of_field) for name, of_field in fields]


def _are_exact(members: Collection[object], named: Named) -> bool:
    kinds: set[Any] = set(map(type, members))
    for kind in kinds:
        if _open_fields(kind, named) != ():
            return all(is_exact(member, named) for member in members)
    return True


def cut_off(given: Any, read: Any, named: Named = ANY, path: str = "") -> Iterator[Difference]:
    """Yield the paths at which an object of a subclass would be sent or read as its base, without the fields that only it has.

    Args:
        given: A value.
        read: The value that arrives: an object where its annotation names a class, a JSON value where it does not.
        named: The classes that the annotation names.
        path: The path of both.
    """
    if isinstance(given, RootModel) and not isinstance(read, RootModel):
        given, named = given.root, named_in(type(given).model_fields["root"].annotation)
    read = _comparable(given, read)
    if isinstance(read, set | frozenset) and type(given) in _CONTAINERS:
        yield from _cut_off_members(cast("Iterable[object]", given), read, named, path)
        return
    given = list(given) if isinstance(given, set | frozenset) else given
    sent, arrived = _sent(given), _arrived(given, read)
    if sent is None or arrived is None:
        return
    kind: Any = type(given)
    is_object = _has_fields(kind)
    lost = [name for name in sent if arrived.get(name, _MISSING) is _MISSING]
    if lost and is_object and _is_cut(given, read, named, lost):
        yield path, _problem(kind, named.base_of(kind) if isinstance(read, Mapping) else type(read), lost)
        return
    of_fields = _named_fields(kind) if is_object else {}
    for name, value in sent.items():
        if name not in lost:
            of_part = of_fields.get(name, UNKNOWN) if is_object else named
            yield from cut_off(value, arrived[name], of_part, f"{path}.{name}" if path else str(name))


def _cut_off_members(given: Iterable[object], read: Iterable[object], named: Named, path: str) -> Iterator[Difference]:
    """Do the same for the members of a set, which can be matched only by their classes."""
    of_kind = {type(member): member for member in read}
    for member in given:
        base = next((each for kind, each in of_kind.items() if isinstance(member, kind)), None)
        yield from cut_off(member, of_kind.get(type(member), base), named, path)


def _is_cut(given: object, read: object, named: Named, lost: Collection[object]) -> bool:
    """Return whether an object lacks fields because of its class, and not because it is serialized without them."""
    kind = type(given)
    if not isinstance(read, Mapping):
        return type(read) is not kind and type(read) in kind.__mro__
    return not _is_own(kind, named) and not set(lost).isdisjoint(_written(given))


def _written(given: object) -> Collection[object]:
    """Return the names of the fields that an object's own class sends; it may leave some out on purpose."""
    try:
        written = to_jsonable_python(given, by_alias=False, round_trip=True)
    except BUGS:
        return ()
    return written if isinstance(written, Mapping) else ()


def _problem(kind: type, base: type | None, lost: Iterable[object]) -> str:
    arrives, union = (f" as {base.__name__},", f" | {base.__name__}") if base else ("", "")
    return f"a {kind.__name__} would arrive{arrives} without {', '.join(map(str, lost))}: annotate it as {kind.__name__}{union}"


def _sent(value: object) -> Mapping[Any, object] | None:
    """Return the parts of a value that are meant to be sent."""
    if isinstance(value, BaseModel):
        known = type(value).model_fields
        return {name: part for name, part in fields_of(value).items() if name not in known or not known[name].exclude}
    return parts_of(value)


def _arrived(given: Any, read: Any) -> Mapping[Any, object] | None:
    """Return the parts that arrive, by the names that they have in what was given."""
    parts = _sent(read)
    if parts is None:
        return None
    if isinstance(given, Mapping) and isinstance(read, Mapping) and given.keys() - parts.keys():  # JSON has texts as keys alone
        return dict(zip(given, read.values(), strict=False))
    given_as, read_as = cast("tuple[Any, Any]", (type(given), type(read)))
    aliases = {**_aliases(read_as), **{name: alias for alias, name in _aliases(given_as).items()}}
    return {**{new: parts[old] for new, old in aliases.items() if old in parts}, **parts}


def _comparable(given: object, read: object) -> object:
    """Return the value that arrives: without a root model that was not given, as a list if it is validated while it is read."""
    if isinstance(read, RootModel) and not isinstance(given, RootModel):
        return _comparable(given, read.root)
    try:
        return listed(read)
    except BUGS:  # a member does not fit, as its reader will say
        return None


def _classes(annotation: Any) -> Iterator[type]:
    bare, marks = unwrap(annotation)
    origin, parts = get_origin(bare), [part for part in get_args(bare) if part is not ...]
    kinds: set[type] = set()
    if is_typeddict(bare):  # which may have other keys, too
        parts = list(get_type_hints(bare).values())
        kinds.update(UNKNOWN.classes)
    elif bare in _OPEN or (_is_container(origin) and not parts):
        kinds.add(object)
    elif origin is None and isinstance(bare, type):
        kinds.add(bare)
    elif origin not in (Literal, Union, UnionType) and not _is_container(origin):
        kinds.update(UNKNOWN.classes)
    if origin is not Literal:
        kinds.update(kind for part in parts for kind in _classes(part))
    yield from kinds
    if marks and object in kinds:  # they may define the value's form
        yield _Unknown


def _is_container(origin: object) -> bool:
    return isinstance(origin, type) and issubclass(origin, Iterable) and not is_dataclass(origin)


def _has_fields(kind: type) -> bool:
    return issubclass(kind, BaseModel) or is_dataclass(kind)


@lru_cache(maxsize=4096)
def _open_fields(kind: type, named: Named) -> Sequence[tuple[str, Named]] | None:
    """Return the fields of a value that may hold objects; ``None`` if the value itself may not be sent as it is."""
    if not _has_fields(kind):
        return None if issubclass(kind, _WITH_PARTS) else ()
    if not _is_own(kind, named):
        return None
    return tuple((name, of_field) for name, of_field in _named_fields(kind).items() if not of_field.is_flat)


def _is_own(kind: type, named: Named) -> bool:
    """Return whether an object of a class is sent as it is."""
    return named.is_any or kind in named.exact


@lru_cache(maxsize=4096)
def _named_fields(kind: type) -> Mapping[str, Named]:
    """Return the classes that the annotations of a model's or a dataclass's fields name."""
    if issubclass(kind, BaseModel):
        fields = {name: named_in(_marked(info)) for name, info in kind.model_fields.items()}
        return fields | {"__pydantic_extra__": UNKNOWN} if kind.model_config.get("extra") == "allow" else fields
    names = kind.__dataclass_fields__  # type: ignore[attr-defined]
    try:
        hints = get_type_hints(kind, include_extras=True)
    except BUGS:  # a name that only pydantic can resolve
        hints = {}
    return {name: named_in(hints[name]) if name in hints else UNKNOWN for name in names}


def _marked(field: Any) -> Any:
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


@lru_cache(maxsize=4096)
def _aliases(kind: Any) -> Mapping[str, str]:
    """Return the names under which the fields of a class are sent, if these are others."""
    fields: Mapping[str, Any] = kind.model_fields if issubclass(kind, BaseModel) else getattr(kind, "__pydantic_fields__", {})
    return {info.serialization_alias: name for name, info in fields.items() if info.serialization_alias not in (None, name)}
