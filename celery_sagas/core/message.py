"""The base of messages that are models, the mark for a saga's key, and dotted paths to values in a message."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cached_property
from inspect import getattr_static
from types import UnionType
from typing import Any, Final, get_origin, get_type_hints

from pydantic import AliasChoices, BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from pydantic_core import to_json
from typing_extensions import is_typeddict

from celery_sagas.core.keys import unwrap
from celery_sagas.core.subclasses import ANY, cut_off, is_exact
from celery_sagas.errors import BUGS, DefinitionError, InvalidMessage


class SagaKey:
    """Mark the argument or message field that holds the saga's correlation key: ``Annotated[str, SagaKey]``."""


class Message(BaseModel):
    """A frozen model that Celery can serialize wherever it stands: as an argument, in a list or in a result."""

    # Not as class keywords: type checkers would report each subclass that does not repeat ``frozen=True``.
    model_config = ConfigDict(frozen=True, populate_by_name=True)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a field that is dumped under a name under which it could not be loaded again."""
        super().__pydantic_init_subclass__(**kwargs)
        for name, info in cls.model_fields.items():
            if (info.serialization_alias or name) not in accepted_names(cls, name, info):
                raise DefinitionError(f"{cls.__module__}.{cls.__qualname__}.{name}", _ONE_WAY, _BOTH_WAYS)

    def __json__(self) -> dict[str, Any]:
        """Return what kombu's JSON encoder writes for this message.

        Raises:
            InvalidMessage: A field holds an object of a subclass of its annotation, whose own fields would be left out.
        """
        dumped = self.model_dump(**_DUMP)
        if not is_exact(self, ANY):
            _check_whole(self, dumped)
        return dumped


_DUMP: Final[dict[str, Any]] = {"mode": "json", "by_alias": True, "round_trip": True}


def encode_event(event: Message) -> dict[str, Any]:
    """Return an event as JSON values, for subscribers that read it by its class.

    Raises:
        InvalidMessage: A field holds an object of a subclass, which would be left out, or read as its base.
    """
    dumped = event.__json__()
    if not is_exact(event, ANY):
        try:
            read = type(event).model_validate_json(to_json(dumped))
        except BUGS:  # its readers report it
            return dumped
        _check_whole(event, read)
    return dumped


def _check_whole(message: Message, arrived: object) -> None:
    if problems := list(cut_off(message, arrived)):
        kind = type(message)
        raise InvalidMessage(f"{kind.__module__}.{kind.__qualname__}", problems)


def read_path(path: tuple[str, ...], arguments: Mapping[str, object]) -> object:
    """Return the value at a path: a parameter, then attributes of objects or keys of dictionaries.

    Raises:
        ValueError: A part of the path is missing.
    """
    value: object = arguments
    for depth, part in enumerate(path, start=1):
        try:
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        except (KeyError, AttributeError) as exc:
            raise ValueError(f"{'.'.join(path[:depth])} is missing") from exc
    return value


def missing_part(path: tuple[str, ...], annotation: Any) -> str:
    """Return the beginning of a path that cannot exist in a parameter with this annotation; empty if all of it may."""
    for depth, part in enumerate(path[1:], start=2):
        members = members_of(annotation)
        if members is None:
            return ""
        if part not in members:
            return ".".join(path[:depth])
        annotation = members[part]
    return ""


def type_at(path: tuple[str, ...], annotation: Any) -> Any:
    """Return the type of the value at a path in a parameter with this annotation; ``Any`` if it is unknown."""
    for part in path[1:]:
        annotation = (members_of(annotation) or {}).get(part, Any)
    return annotation


def members_of(annotation: Any) -> dict[str, Any] | None:
    """Return the fields, properties or keys that values of a type have, with their types; ``None`` if they are unknown."""
    bare, _ = unwrap(annotation)
    kind = get_origin(bare) or bare
    if not isinstance(kind, type) or kind in (Any, object, UnionType):
        return None
    if is_typeddict(kind) or is_dataclass(kind):
        return _hints(kind)
    if issubclass(kind, BaseModel):
        fields = {name: info.annotation for name, info in kind.model_fields.items()}
        return None if kind.model_config.get("extra") == "allow" else fields | _properties(kind)
    return None if issubclass(kind, Mapping) else {}


def _hints(kind: type) -> dict[str, Any] | None:
    try:
        return get_type_hints(kind) | _properties(kind)
    except NameError:  # a forward reference that only pydantic can resolve
        return None


def _properties(kind: type) -> dict[str, Any]:
    names = [name for name in dir(kind) if not name.startswith(("_", "model_"))]
    return {name: Any for name in names if isinstance(getattr_static(kind, name, None), property | cached_property)}


def accepted_names(model: type[BaseModel], name: str, info: FieldInfo) -> list[object]:
    """Return the names by which a model reads one of its fields."""
    by_name = model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name")
    alias = info.validation_alias
    accepted: list[object] = list(alias.choices) if isinstance(alias, AliasChoices) else [alias]
    return [name, *accepted] if by_name or alias is None else accepted


_ONE_WAY: Final = "a message that is sent under this field's serialization alias could not be read again"
_BOTH_WAYS: Final = "Use Field(alias=…), which holds both ways, or accept the serialization alias in validation_alias"
