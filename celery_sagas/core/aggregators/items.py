"""The items of an aggregator: encoded where they are given, read where they are flushed, and sorted into groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import CoreConfig, SchemaValidator, to_json

from celery_sagas.core.arguments import MASK, holds_secret, is_native
from celery_sagas.core.codec import validation_problems
from celery_sagas.core.keys import key_text, may_have_text, spelled, text_of
from celery_sagas.core.message import missing_part, read_path, type_at
from celery_sagas.core.saga import unresolved, unusable
from celery_sagas.core.subclasses import Named, cut_off, is_exact, listed, named_in
from celery_sagas.errors import BUGS, DefinitionError, InvalidMessage

GroupBy = str | tuple[str, ...] | Callable[[Any], object]
#: The parameter that stands for the item in paths.
_ITEM: Final = "item"


class Encoded(NamedTuple):
    """An item, encoded by its type."""

    value: Any  #: in values of JSON
    payload: bytes  #: as JSON text
    item: Any  #: as it is read from the payload


@dataclass(frozen=True)
class ItemType:
    """The type of an aggregator's items: any that pydantic supports."""

    aggregator: str
    annotation: Any  #: resolved; ``Any`` accepts every JSON value
    group_by: GroupBy | None
    correlate_by: str | None = None

    def check(self) -> None:
        """Refuse a type that pydantic does not support, and a path that does not exist or leads to no correlation id.

        Raises:
            DefinitionError: One of these.
        """
        _ = self._validator
        self._check_paths("group_by", self._paths, "Name a field, or give a function")
        if self.correlate_by is not None:
            self._check_paths("correlate_by", [_path(self.correlate_by)], "Name a field")
            self._check_correlation_id(type_at(_path(self.correlate_by), self.annotation))

    def value_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the item of a message: its one argument, or its named arguments together.

        Raises:
            InvalidMessage: It has neither, or both.
        """
        if kwargs and not args:
            return dict(kwargs)
        if len(args) == 1 and not kwargs:
            return args[0]
        problem = f"it has {len(args)} positional and {len(kwargs)} named arguments: an item is one argument, or named ones"
        raise InvalidMessage(self.aggregator, [("", problem)])

    def encode(self, value: Any) -> Any:
        """Return an item as JSON values, encoded by its type; an encoded item stays as it is.

        Raises:
            InvalidMessage: It does not fit the type, cannot be encoded, could not be read again, or holds a secret.
        """
        return self.encode_and_read(value).value

    def encode_and_read(self, value: Any) -> Encoded:
        """Encode an item, and also return it as it will be read.

        Raises:
            InvalidMessage: See ``encode``.
        """
        value = value if type(value) is dict else listed(value)
        given = self._given(value)
        payload = self._json(given)
        item = self.read(payload)
        if given is not value and not is_exact(value, self._named):
            self._check_whole(value, payload)
        encoded = self._dump(item)
        if encoded != given:
            payload = self._json(encoded)
            item = self.read(payload)
        if MASK in str(encoded) and (holds_secret(value) or holds_secret(item)):
            problem = "it holds a secret, which would be sent as asterisks: send its plain value"
            raise InvalidMessage(self.aggregator, [("", problem)])
        return Encoded(encoded, payload, item)

    def read(self, payload: str | bytes) -> Any:
        """Return the item that a payload encodes.

        Raises:
            InvalidMessage: It does not fit the type.
        """
        return self._validated(self._validator.validate_json, payload)

    def group_of(self, item: Any) -> str:
        """Return the text of the group that an item belongs to.

        Args:
            item: An item that was read, or its JSON values if it cannot be read.

        Raises:
            InvalidMessage: The field is missing, or its value is not a text, int, UUID or enum.
        """
        if self.group_by is None:
            return ""
        try:
            values = self._values_of(item)
            return key_text([text_of(value) for value in values])
        except ValueError as exc:
            raise InvalidMessage(self.aggregator, [(self._shown_group_by, str(exc).removeprefix(f"{_ITEM}."))]) from exc

    def correlation_of(self, item: Any) -> str | None:
        """Return the text of an item's correlation id; ``None`` if it is missing, or not a text, int, UUID or enum.

        Args:
            item: An item that was read, or its JSON values if it cannot be read.
        """
        if self.correlate_by is None:
            return None
        try:
            return text_of(read_path(_path(self.correlate_by), {_ITEM: item}))
        except ValueError:
            return None

    def _check_paths(self, keyword: str, paths: Sequence[tuple[str, ...]], remedy: str) -> None:
        for path in paths:
            if missing := missing_part(path, self.annotation):
                shown = missing.removeprefix(f"{_ITEM}.")
                raise DefinitionError(self.aggregator, f"{keyword}= names {shown!r}, which its items do not have", remedy)

    def _check_correlation_id(self, annotation: Any) -> None:
        if not may_have_text(annotation):
            raise DefinitionError(
                self.aggregator,
                f"correlate_by= names {self.correlate_by!r}, declared as {spelled(annotation)}: it never is a correlation id",
                "Name a field that holds a text, an int, a UUID or an enum of these",
            )

    def _values_of(self, item: Any) -> list[object]:
        if not callable(self.group_by):
            return [read_path(path, {_ITEM: item}) for path in self._paths]
        try:
            return [self.group_by(item)]
        except BUGS as exc:
            raise ValueError(f"the function raised {type(exc).__name__}") from exc

    @property
    def _paths(self) -> list[tuple[str, ...]]:
        if self.group_by is None or callable(self.group_by):
            return []
        fields = (self.group_by,) if isinstance(self.group_by, str) else self.group_by
        return [_path(field) for field in fields]

    @property
    def _shown_group_by(self) -> str:
        if callable(self.group_by):
            return getattr(self.group_by, "__name__", "group_by")
        return ", ".join([self.group_by] if isinstance(self.group_by, str) else self.group_by or ())

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        try:
            adapter = TypeAdapter[Any](self.annotation)
            if not getattr(adapter, "pydantic_complete", True):
                adapter.rebuild(raise_errors=True)
        except PydanticUndefinedAnnotation as exc:
            raise unresolved(self.aggregator, f"its items need the name {exc.name!r}, which is not defined") from exc
        except (PydanticUserError, TypeError) as exc:
            raise unusable(self.aggregator, "its items", exc) from exc
        return adapter

    @cached_property
    def _validator(self) -> SchemaValidator:
        return SchemaValidator(self._adapter.core_schema, CoreConfig(hide_input_in_errors=True))

    def _validated(self, validate: Callable[[Any], Any], value: Any) -> Any:
        try:
            return validate(value)
        except ValidationError as exc:
            raise InvalidMessage(self.aggregator, validation_problems(exc)) from exc
        except BUGS as exc:
            raise InvalidMessage(self.aggregator, [("", f"its validation raised {type(exc).__name__}")]) from exc

    @cached_property
    def _named(self) -> Named:
        return named_in(self.annotation)

    def _check_whole(self, value: Any, payload: bytes) -> None:
        """Refuse a value that would lose fields because the annotation is a base of its class."""
        if problems := list(cut_off(value, self.read(payload), self._named)):
            raise InvalidMessage(self.aggregator, problems)

    def _given(self, value: Any) -> Any:
        """Return the given value as JSON values: encoded by the type, unless it needs no encoding."""
        if isinstance(value, BaseModel):  # a model of another class may have the same fields by chance
            value = self._validated(self._validator.validate_python, value)
        try:
            return value if is_native(value) else self._dump(value)
        except RecursionError as exc:
            raise self._not_json(value) from exc

    def _dump(self, value: Any) -> Any:
        try:
            return self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
        except BUGS as exc:
            raise self._not_json(value) from exc

    def _json(self, value: Any) -> bytes:
        try:
            return to_json(value)
        except BUGS as exc:
            raise self._not_json(value) from exc

    def _not_json(self, value: Any) -> InvalidMessage:
        return InvalidMessage(self.aggregator, [("", f"a {type(value).__name__} cannot be encoded as JSON")])


def _path(field: str) -> tuple[str, ...]:
    return (_ITEM, *field.split("."))
