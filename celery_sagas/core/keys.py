"""Correlation properties: which values may name an instance, and the one canonical text of each."""

import json
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from celery_sagas.errors import BUGS, DefinitionError

#: The longest canonical text, in characters: what every backend can index.
TEXT_LIMIT: Final = 255


class NotAKey(ValueError):
    """Raised when a value is no key; its arguments are the value, as it is shown, and why."""

    def __str__(self) -> str:
        return "{} is no key: {}".format(*self.args)


class KeyProperty:
    """A field of a saga by which its instances are found."""

    def __init__(
        self, saga: str, field: str, info: FieldInfo, *, config: ConfigDict | None = None, allowed: str = "str, int, UUID"
    ) -> None:
        """Build the property once; its validator is kept.

        Args:
            saga: The saga's name, for error texts.
            field: The field's name.
            info: The field's declared type, constraints and transformers; forward references are resolved by now.
            config: The saga's ``model_config``, which may change values too (``str_strip_whitespace``).
            allowed: The plain types that the field may have, for error texts.

        Raises:
            DefinitionError: The declared type has no canonical text.
        """
        self.field = field
        self.type, self._base = _key_types(saga, field, info.annotation, allowed)
        declared: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        self._adapter = TypeAdapter[object](declared, config=config)
        #: Whether a value of exactly the declared type is held as it is: nothing constrains or transforms it.
        self._is_plain = info.annotation in (str, int, UUID) and not info.metadata and not set(config or ()) - _HARMLESS

    def convert(self, value: object) -> object:
        """Return a message's value as the field would hold it.

        Raises:
            ValueError: The value is null, a bool, or does not become the declared type without loss; or the field's own
                validation refuses it; or it cannot be stored (see ``text``).
        """
        if self._is_plain and type(value) is self.type:
            self.text(value)
            return value
        declared = self._declare(_CONVERSIONS[self._base](_plain(value)))
        held = self._validate(declared)
        if held != declared and self._validate(held) != held:
            raise _no_key(value, f"the validation of {self.field} changes it again each time")
        self.text(held)
        return held

    def text(self, value: object) -> str:
        """Return the canonical text of a value that the field holds; no two values share one.

        Raises:
            ValueError: The value is not of the declared type, or no store can keep its text: it is empty, longer than 255
                characters, or contains U+0000 or half a surrogate pair.
        """
        if type(value) is str and self.type is str:
            return _storable(value)
        plain = _plain(value)
        if not isinstance(plain, self._base):
            raise _no_key(value, f"it is no {self.type.__name__}")
        return _storable(_to_str(plain))

    def _declare(self, value: object) -> object:
        if not issubclass(self.type, Enum):
            return value
        try:
            return self.type(value)
        except BUGS as exc:
            raise _no_key(value, f"it is no {self.type.__name__}") from exc

    def _validate(self, value: object) -> object:
        try:
            return self._adapter.validate_python(value)
        except ValidationError as exc:
            raise _no_key(value, "; ".join(error["msg"] for error in exc.errors(include_url=False))) from exc
        except BUGS as exc:
            raise _no_key(value, f"the validation of {self.field} failed: {exc!r}") from exc


class FlagProperty(KeyProperty):
    """A field of true and false: instances are listed by it, and not found, since many have the same value."""

    def __init__(self, field: str) -> None:
        self.field = field

    def convert(self, value: object) -> object:
        """Return true or false, also of the text of one, or of what equals one; see ``KeyProperty.convert``."""
        if value not in (True, False, "true", "false"):
            raise _no_key(value, "it is neither true nor false")
        return value in (True, "true")

    def text(self, value: object) -> str:
        """Return the canonical text of a value that the field holds."""
        return "true" if value else "false"


def search_property(saga: str, field: str, info: FieldInfo, *, config: ConfigDict | None = None) -> KeyProperty:
    """Return a field by whose values instances are listed; see ``KeyProperty``."""
    declared, _ = unwrap(info.annotation)
    if declared is bool:
        return FlagProperty(field)
    return KeyProperty(saga, field, info, config=config, allowed="str, int, UUID, bool")


def key_text(parts: Sequence[str]) -> str:
    """Return the text of a correlation key: of one part itself, of several parts a compact JSON array.

    Raises:
        ValueError: It is longer than 255 characters in all.
    """
    return _limited(parts[0] if len(parts) == 1 else json.dumps(list(parts), ensure_ascii=False, separators=(",", ":")))


def text_of(value: object) -> str:
    """Return the canonical text of a value without a declared type.

    Raises:
        ValueError: It is null, a bool, or not a text, int, UUID or enum of these; or no store can keep its text.
    """
    return _storable(_to_str(_plain(value)))


def may_have_text(annotation: object) -> bool:
    """Return whether a value with this annotation may have a canonical text (see ``text_of``); true for unknown types."""
    bare, _ = unwrap(annotation)
    kind = get_origin(bare) or bare
    if not isinstance(kind, type):
        return True
    if issubclass(kind, Enum):
        values = [member.value for member in kind]
        return not values or any(isinstance(value, tuple(_CONVERSIONS)) and not isinstance(value, bool) for value in values)
    if issubclass(kind, tuple(_CONVERSIONS)):
        return kind is not bool
    return not is_dataclass(kind) and not issubclass(kind, _WITHOUT_TEXT)


def unwrap(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """Strip ``Annotated``, ``| None``, ``NewType`` and type aliases from an annotation, and collect its metadata."""
    if get_origin(annotation) is Annotated:
        inner, marks = unwrap(annotation.__origin__)
        return inner, marks + annotation.__metadata__
    if isinstance(annotation, NewType):
        return unwrap(annotation.__supertype__)
    if type(annotation).__name__ == "TypeAliasType":  # of typing (3.12) or of typing_extensions
        return unwrap(annotation.__value__)
    members = [member for member in get_args(annotation) if member is not NoneType]
    optional = get_origin(annotation) in (Union, UnionType) and len(members) == 1
    return unwrap(members[0]) if optional else (annotation, ())


def spelled(annotation: object) -> str:
    """Return an annotation as an error names it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _key_types(saga: str, name: str, annotation: object, allowed: str) -> tuple[type, type]:
    """Return the declared type and the type of its plain values."""
    declared, _ = unwrap(annotation)
    for base in _CONVERSIONS:
        if declared is base or _is_enum_of(declared, base):
            return declared, base
        if get_origin(declared) is Literal and {type(value) for value in get_args(declared)} == {base}:
            return base, base
    raise DefinitionError(
        saga,
        f"its property {name} is declared as {spelled(annotation)}, whose values have no canonical text",
        f"Declare {name} as {allowed}, or an enum or a Literal whose values are all str or all int; each may be `| None`.",
    )


def _is_enum_of(declared: object, base: type) -> bool:
    if base is UUID or not isinstance(declared, type) or not issubclass(declared, Enum) or issubclass(declared, Flag):
        return False
    values = [member.value for member in declared]
    return bool(values) and all(isinstance(value, base) and not isinstance(value, bool) for value in values)


def _plain(value: object) -> object:
    plain = value.value if isinstance(value, Enum) else value
    if plain is None:
        raise _no_key(value, "it is null")
    if isinstance(plain, bool):
        raise _no_key(value, "it is a bool")
    return plain


def _to_str(value: object) -> str:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, UUID):
        return str(value)
    raise _lossy(value, str)


def _to_int(value: object) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return int(value)
    if isinstance(value, float | Decimal) and _is_exact(value) and value == int(value):
        return int(value)
    raise _lossy(value, int)


def _is_exact(value: float | Decimal) -> bool:
    if isinstance(value, float):
        return abs(value) < 2**53  # beyond it neighbouring ints share a float; false for nan
    return value.is_finite() and value.copy_abs() < 10**TEXT_LIMIT  # before int() spells out an exponent of millions


def _to_uuid(value: object) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        if isinstance(value, str) and (parsed := UUID(value)).hex in value.replace("-", "").lower():
            return parsed  # UUID() alone also takes "0x…" and underscores, as int() does
    except ValueError as exc:
        raise _lossy(value, UUID) from exc
    raise _lossy(value, UUID)


def _lossy(value: object, declared: type) -> ValueError:
    return _no_key(value, f"as a {type(value).__name__} it does not become {declared.__name__} without loss")


def _no_key(value: object, why: str) -> NotAKey:
    return NotAKey(reprlib.repr(value), why)


def _storable(text: str) -> str:
    if not text:  # most often a header or a form field that was not set: all such messages would meet in one instance
        raise _no_key(text, "it is empty; a property without a value is None")
    if "\0" in text or not (text.isascii() or _SURROGATE.search(text) is None):
        raise _no_key(text, "it contains U+0000 or half a surrogate pair, which no store keeps")
    return _limited(text)


def _limited(text: str) -> str:
    if len(text) > TEXT_LIMIT:
        raise _no_key(text, f"it has {len(text)} characters, and a key has at most {TEXT_LIMIT}")
    return text


#: The settings of a model that change no value.
_HARMLESS: Final = frozenset(("extra", "hide_input_in_errors", "protected_namespaces", "title"))
_DECIMAL: Final = re.compile(r"0|-?[1-9][0-9]*")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: Types whose values have no canonical text; dataclasses have none either. A str is a sequence too.
_WITHOUT_TEXT: Final = (float, Decimal, date, time, timedelta, BaseModel, Sequence, Set, Mapping)
_CONVERSIONS: Final[Mapping[type, Callable[[object], object]]] = {str: _to_str, int: _to_int, UUID: _to_uuid}
