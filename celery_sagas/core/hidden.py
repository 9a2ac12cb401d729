"""Hidden values: those that ``Field(repr=False)`` or a secret type declares. The journal keeps a mark in their place."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pydantic
from pydantic import BaseModel, RootModel, SecretBytes, SecretStr, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import to_json
from typing_extensions import is_typeddict

from celery_sagas.core.keys import unwrap
from celery_sagas.core.message import accepted_names
from celery_sagas.errors import BUGS

#: In the place of a hidden value.
HIDDEN: Final = "(hidden)"
_SECRETS: Final = (SecretStr, SecretBytes, *filter(None, [getattr(pydantic, "Secret", None)]))
_UNIONS: Final = (Union, UnionType)
_LISTS: Final = (list, Sequence, MutableSequence)
_DICTS: Final = (dict, Mapping, MutableMapping)
#: What stands in for hidden values while a history is replayed: the first that their annotation accepts.
_STAND_INS: Final[tuple[Any, ...]] = (
    *(HIDDEN, 0, "0", 1, "1", "0000", 1000, False, [], {}, [HIDDEN], "2000-01-01", "2000-01-01T00:00:00Z", "00:00:00"),
    *("00000000-0000-4000-8000-000000000000", "hidden@example.com", "https://example.com/"),
)

#: Given the annotation of a hidden value, and what stands in its place, returns what is to stand there.
Replace = Callable[[Any, Any], Any]


def hides(annotation: Any) -> bool:
    """Return whether values with the annotation of an argument or a field are hidden, or may have hidden parts."""
    try:
        return _hides(annotation, frozenset())
    except BUGS:  # it names itself, or what only pydantic can resolve
        return True


def _hides(annotation: Any, within: frozenset[type]) -> bool:
    bare, marks = unwrap(annotation)
    if _is_hidden(bare, marks):
        return True
    if get_origin(bare) is Literal:
        return False
    if isinstance(bare, type) and not get_args(bare):
        return bare not in within and (_class_hides(bare) if not within else _parts_hide(bare, within))
    return any(_hides(part, within) for part in (*get_args(bare), *fields_in(get_origin(bare))))


@lru_cache(maxsize=4096)
def _class_hides(kind: type) -> bool:
    return _parts_hide(kind, frozenset())


def _parts_hide(kind: type, within: frozenset[type]) -> bool:
    return any(_hides(part, within | {kind}) for part in fields_in(kind))


def replaced(annotation: Any, value: Any, replace: Replace) -> Any:
    """Return JSON values with their hidden parts replaced; where those cannot be told apart, with all of it replaced.

    ``None`` stays: it says nothing but that there is no value.

    Args:
        annotation: Of the value.
        value: As it was received, or as it is stored.
        replace: Returns what stands in the place of a hidden value.
    """
    bare, marks = unwrap(annotation)
    if value is None:
        return value
    if _is_hidden(bare, marks):
        return replace(annotation, value)
    if not hides(bare):
        return value
    if any(map(_transforms, marks)):
        return replace(annotation, value)
    kind, parts = get_origin(bare) or bare, get_args(bare)
    if kind in _UNIONS:
        return _replaced_in_union(parts, value, replace)
    if isinstance(value, list) and (kind in _LISTS or (kind is tuple and parts[-1] is ...)):
        return [replaced(parts[0], item, replace) for item in value]
    if isinstance(value, dict) and kind in _DICTS and not hides(parts[0]):
        return {name: replaced(parts[1], item, replace) for name, item in value.items()}
    if isinstance(value, dict) and _is_plain(kind):
        return _replaced_in_model(kind, value, replace)
    return replace(annotation, value)


def mark(annotation: Any, value: Any) -> str:
    """Return the mark that is kept in the place of a hidden value."""
    return HIDDEN


def stand_in(annotation: Any, value: Any) -> Any:
    """Return a value that the annotation of a hidden one accepts, or the mark; a value that is not the mark stays."""
    if value != HIDDEN:
        return value
    adapter = TypeAdapter[Any](_constrained(*unwrap(annotation)))
    return next((each for each in (*_STAND_INS, *_members_of(unwrap(annotation)[0])) if _fits(adapter, each)), HIDDEN)


def _members_of(bare: Any) -> Iterator[Any]:
    """Yield the values that an enumeration, or a literal, has: its first is no secret."""
    if get_origin(bare) is Literal:
        yield from get_args(bare)
    elif isinstance(bare, type) and issubclass(bare, Enum):
        yield from (each.value for each in bare)


def _constrained(bare: Any, marks: Sequence[object]) -> Any:
    """Return a type with its constraints, without what pydantic knows of fields alone."""
    constraints = [part for each in marks for part in (each.metadata if isinstance(each, FieldInfo) else (each,))]
    return Annotated[(bare, *constraints)] if constraints else bare


def _fits(adapter: TypeAdapter[Any], value: object) -> bool:
    try:
        adapter.validate_json(to_json(value))
    except BUGS:
        return False
    return True


def _transforms(mark: object) -> bool:
    """Return whether a part of an annotation may change a value before its type does, or after it."""
    return hasattr(mark, "__get_pydantic_core_schema__") and not isinstance(mark, pydantic.AfterValidator)


def _is_hidden(bare: Any, marks: Sequence[object]) -> bool:
    kind = get_origin(bare) or bare
    is_secret = isinstance(kind, type) and issubclass(kind, _SECRETS)
    return is_secret or any(isinstance(each, FieldInfo) and not each.repr for each in marks)


def fields_in(kind: Any) -> Iterator[Any]:
    """Yield the annotations of the fields of a class, with their marks."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from map(marked, kind.model_fields.values())
    elif isinstance(kind, type) and is_dataclass(kind):
        yield from _fields_of_dataclass(kind)
    elif is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        yield from get_type_hints(kind, include_extras=True).values()


def _fields_of_dataclass(kind: Any) -> Iterator[Any]:
    of_pydantic: Mapping[str, FieldInfo] = getattr(kind, "__pydantic_fields__", {})
    hints = {} if of_pydantic else get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        annotation = marked(of_pydantic[field.name]) if field.name in of_pydantic else hints.get(field.name, Any)
        marks = [field.default] if isinstance(field.default, FieldInfo) else []
        marks += [] if field.repr else [pydantic.Field(repr=False)]
        yield Annotated[(annotation, *marks)] if marks else annotation


def marked(info: FieldInfo) -> Any:
    """Return the annotation of a field, with all that its declaration says."""
    return Annotated[(info.annotation, info, *info.metadata)]


def _replaced_in_union(members: Sequence[Any], value: Any, replace: Replace) -> Any:
    for member in members:
        bare, marks = unwrap(member)
        is_another = _is_plain(get_origin(bare) or bare) and not isinstance(value, dict) and not _is_hidden(bare, marks)
        if not is_another:
            value = replaced(member, value, replace)
    return value


@lru_cache(maxsize=4096)
def _is_plain(kind: Any) -> bool:
    """Return whether a class is a model of which each field is found by its names, and those that hide something as they are."""
    if not isinstance(kind, type) or not issubclass(kind, BaseModel) or issubclass(kind, RootModel):
        return False
    validators = kind.__pydantic_decorators__.model_validators.values()
    names = [name for field, info in kind.model_fields.items() for name in accepted_names(kind, field, info)]
    if _are_transformed(kind, {name for name, info in kind.model_fields.items() if hides(marked(info))}):
        return False
    return all(each.info.mode == "after" for each in validators) and all(isinstance(name, str | None) for name in names)


def _are_transformed(model: type[BaseModel], fields: Set[str]) -> bool:
    """Return whether methods of a model change the values of any of these fields."""
    decorators = model.__pydantic_decorators__
    methods = [each.info for each in decorators.field_validators.values() if each.info.mode != "after"]
    methods += [each.info for each in decorators.field_serializers.values()]  # type: ignore[misc]
    return any("*" in each.fields or not fields.isdisjoint(each.fields) for each in methods)


def _replaced_in_model(model: type[BaseModel], value: dict[str, Any], replace: Replace) -> dict[str, Any]:
    """Replace the hidden fields, and what the model does not know: newer code may have added it, and hide it."""
    known, hiding = _names_of(model), dict(_hiding_fields(model))
    found = {name: part if name in known else replace(Any, part) for name, part in value.items()}
    return {name: replaced(hiding[name], part, replace) if name in hiding else part for name, part in found.items()}


@lru_cache(maxsize=4096)
def _names_of(model: type[BaseModel]) -> frozenset[str]:
    """Return the names by which the fields of a model are known, in what it reads and writes."""
    fields = model.model_fields.items()
    names = {name for field, info in fields for name in (*accepted_names(model, field, info), info.serialization_alias, field)}
    return frozenset(str(name) for name in names if name is not None)


@lru_cache(maxsize=4096)
def _hiding_fields(model: type[BaseModel]) -> Sequence[tuple[str, Any]]:
    """Return the names of the fields that are hidden, or have hidden parts, each with the field's annotation."""
    hiding = [(field, info, marked(info)) for field, info in model.model_fields.items() if hides(marked(info))]
    names = [({*accepted_names(model, field, info), info.serialization_alias}, annotation) for field, info, annotation in hiding]
    return [(str(name), annotation) for accepted, annotation in names for name in accepted if name is not None]
