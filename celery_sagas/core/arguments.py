"""The arguments of a message: encoded where it is sent, validated and converted where it is handled."""

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

import typing_extensions
from pydantic import BaseModel, ConfigDict, PydanticUndefinedAnnotation, PydanticUserError, SecretBytes, SecretStr, TypeAdapter
from pydantic import ValidationError as DoesNotValidate
from pydantic.fields import FieldInfo
from pydantic_core import CoreConfig, SchemaSerializer, SchemaValidator, to_json, to_jsonable_python

from celery_sagas.core.codec import validation_problems
from celery_sagas.core.comparison import Difference
from celery_sagas.core.saga import unresolved, unusable
from celery_sagas.core.subclasses import UNKNOWN, Named, cut_off, is_exact, listed, named_in
from celery_sagas.errors import BUGS, DefinitionError, InvalidMessage

_NATIVE: Final = frozenset((str, int, float, bool, type(None)))
_MUTABLE: Final = (list, dict, set, bytearray, BaseModel)
#: The text that pydantic writes in place of a secret, whose value is then lost.
MASK: Final = "**********"


@dataclass(frozen=True, slots=True)
class Arguments:
    """The message parameters of one step."""

    step: str
    annotations: Mapping[str, Any]  #: parameter to resolved annotation, in order
    defaults: Mapping[str, Any]
    unannotated: frozenset[str]
    _positional: tuple[str, ...]
    _validator: SchemaValidator  #: of all arguments by name
    _serializers: Mapping[str, SchemaSerializer]  #: of one argument by name
    _readers: Mapping[str, SchemaValidator]  #: of one argument by name
    _named: Mapping[str, Named]  #: by one argument's annotation

    def first(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the parameter that receives a value put before these arguments; empty if there is no room for one."""
        has_room = len(args) < len(self._positional) and self._positional[0] not in kwargs
        return self._positional[0] if has_room else ""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Give each argument its parameter's name.

        Raises:
            InvalidMessage: There are too many, or one is given twice.
        """
        if len(args) > len(self._positional):
            problem = f"it has {len(args)} positional arguments, and {len(self._positional)} are known"
            raise InvalidMessage(self.step, [("", problem)])
        bound = dict(zip(self._positional, args, strict=False))
        if doubled := [(name, "it is given twice") for name in kwargs if name in bound]:
            raise InvalidMessage(self.step, doubled)
        bound.update(kwargs)
        return bound

    def validate(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments converted to their annotations: fresh objects with every call, defaults filled in.

        Raises:
            InvalidMessage: An argument is missing, unknown, or does not fit its annotation.
        """
        try:
            values = self._validator.validate_json(to_json(bound))
        except DoesNotValidate as exc:
            raise InvalidMessage(self.step, validation_problems(exc)) from exc
        except BUGS as exc:
            raise InvalidMessage(self.step, _not_json(bound) or [("", f"its validation raised {type(exc).__name__}")]) from exc
        return {name: values[name] if name in values else _fresh(self.defaults.get(name)) for name in self.annotations}

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Encode arguments as JSON values, by their annotations; JSON values stay as they are.

        Raises:
            InvalidMessage: A value cannot be encoded.
        """
        names = (*self._positional, *[""] * (len(args) - len(self._positional)))
        return [self._encode(name, value) for name, value in zip(names, args, strict=False)], self._encode_named(kwargs)

    def encode_partial(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Encode arguments as ``encode`` does, where an answer may still be put before the positional ones."""
        args = [listed(value) for value in args]
        encoded = [self._encode("", value) for value in args]
        for position, value in enumerate(args):
            if value is not encoded[position]:
                self._check_partial(self._positional[position : position + 2], value, encoded[position])
        return encoded, self._encode_named(kwargs)

    def _encode_named(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._encode(name, value) for name, value in kwargs.items()}

    def _encode(self, name: str, value: Any) -> Any:
        if type(value) in _NATIVE:
            return value
        try:
            if is_native(value):
                return value
            is_whole = is_exact(value, self._named.get(name, UNKNOWN))
            value = value if is_whole else listed(value)
            encoded = self._dump(name, value)
        except BUGS as exc:
            without = ", and the argument has no annotation that says how" if name in self.unannotated else ""
            raise InvalidMessage(self.step, [(name, f"a {type(value).__name__} cannot be encoded as JSON{without}")]) from exc
        if not is_whole and (problems := self._cut_off(name, value, encoded)):
            raise InvalidMessage(self.step, problems)
        if MASK in str(encoded) and holds_secret(value):
            raise InvalidMessage(self.step, [(name, "it holds a secret, which would be sent as asterisks: send its plain value")])
        return encoded

    def _dump(self, name: str, value: Any) -> Any:
        """Return a value as JSON values; by its own type if its parameter is not known yet."""
        if name not in self._serializers:
            return to_jsonable_python(value, by_alias=True, round_trip=True)
        dumped: dict[str, Any] = self._serializers[name].to_python(
            {name: value}, mode="json", by_alias=True, round_trip=True, warnings=False
        )
        return dumped[name]

    def _cut_off(self, name: str, value: Any, encoded: Any) -> list[Difference] | None:
        """Return the parts of a value that an annotation with a base of its class would drop; ``None`` if it does not fit."""
        if name not in self._readers:
            return None
        try:
            read = self._readers[name].validate_json(to_json({name: encoded}))
        except BUGS:
            return None
        return list(cut_off({name: value}, read, self._named[name]))

    def _check_partial(self, names: Sequence[str], value: Any, encoded: Any) -> None:
        """Refuse a value that would lose parts, whichever of these arguments it is."""
        if any(is_exact(value, self._named[name]) for name in names):
            return
        problems = [self._cut_off(name, value, encoded) for name in names]
        if problems.count(None) == len(names):  # a base that forbids unknown fields
            problems = [self._cut_off_by_annotation(name, value) for name in names]
        if [] not in problems and (cut := next(filter(None, problems), None)):
            raise InvalidMessage(self.step, cut)

    def _cut_off_by_annotation(self, name: str, value: Any) -> list[Difference] | None:
        try:
            return self._cut_off(name, value, self._dump(name, value))
        except BUGS:
            return None


def arguments_of(step: str, function: Callable[..., Any], *, leading: int, known: Mapping[str, Any] | None = None) -> Arguments:
    """Read a step's message parameters, resolving its annotations.

    Args:
        step: The step's name, for errors.
        function: The handler.
        leading: How many parameters come before the message: the state, and the task with ``bind=True``.
        known: Names that annotations may use besides those of the handler's module.
    """
    parameters = list(inspect.signature(function).parameters.values())[leading:]
    hints = resolve_annotations(step, function, known)
    annotations = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
    optional = {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
    _check_defaults(step, optional)
    message = _schema(step, "its message", annotations, optional)
    single = {name: _schema(step, f"the argument {name!r}", {name: hint}, {}).core_schema for name, hint in annotations.items()}
    return Arguments(
        step=step,
        annotations=annotations,
        defaults=optional,
        unannotated=frozenset(annotations.keys() - hints.keys()),
        _positional=tuple(parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY),
        _validator=SchemaValidator(message.core_schema, CoreConfig(hide_input_in_errors=True)),
        _serializers={name: SchemaSerializer(schema) for name, schema in single.items()},
        _readers={name: SchemaValidator(schema, CoreConfig(hide_input_in_errors=True)) for name, schema in single.items()},
        _named={name: named_in(hint) for name, hint in annotations.items()},
    )


def reader_of(task: str, name: str, annotation: Any) -> SchemaValidator:
    """Return what reads one argument from a JSON object of its name.

    Args:
        task: The task's name, for errors.
        name: The parameter.
        annotation: Of the parameter.
    """
    return codec_of(task, f"the argument {name!r}", name, annotation)[1]


def codec_of(task: str, what: str, name: str, annotation: Any) -> tuple[SchemaSerializer, SchemaValidator]:
    """Return what writes a value into a JSON object under a name, and what reads it from there.

    Args:
        task: The task's name, for errors.
        what: What the value is, for errors.
        name: The name.
        annotation: Of the value.

    Raises:
        DefinitionError: There is no JSON for it.
    """
    schema = _schema(task, what, {name: annotation}, {}).core_schema
    serializer = SchemaSerializer(schema, CoreConfig(ser_json_inf_nan="constants"))
    return serializer, SchemaValidator(schema, CoreConfig(hide_input_in_errors=True))


def resolve_annotations(step: str, function: Callable[..., Any], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the annotations of a handler as objects; names are looked up where it was defined."""
    try:
        return typing.get_type_hints(inspect.unwrap(function), localns=dict(known or {}), include_extras=True)
    except Exception as exc:  # the evaluation of an annotation may raise anything
        raise unresolved(step, str(exc)) from exc


def _schema(step: str, what: str, annotations: Mapping[str, Any], optional: Mapping[str, Any]) -> TypeAdapter[Any]:
    """Return the adapter of a typed dictionary: pydantic validates it from JSON, whatever the parameters are called."""
    try:
        adapter = TypeAdapter[Any](_message_type(annotations, optional))
        if not getattr(adapter, "pydantic_complete", True):
            adapter.rebuild(raise_errors=True)
    except PydanticUndefinedAnnotation as exc:
        raise unresolved(step, f"{what} needs the name {exc.name!r}, which is not defined") from exc
    except (PydanticUserError, TypeError) as exc:
        raise unusable(step, what, exc) from exc
    return adapter


def _message_type(annotations: Mapping[str, Any], optional: Mapping[str, Any]) -> Any:
    typed_dict: Any = typing_extensions.TypedDict
    not_required: Any = typing_extensions.NotRequired
    message = typed_dict(
        "Message", {name: not_required[hint] if name in optional else hint for name, hint in annotations.items()}
    )
    message.__pydantic_config__ = ConfigDict(extra="forbid", populate_by_name=True)
    return message


def _check_defaults(step: str, defaults: Mapping[str, Any]) -> None:
    for name, default in defaults.items():
        if isinstance(default, FieldInfo):
            raise DefinitionError(
                step, f"the default of {name!r} is a Field()", "Write name: Annotated[type, Field(…)] = default"
            )


def _fresh(default: Any) -> Any:
    return deepcopy(default) if isinstance(default, _MUTABLE) else default


def is_native(value: object) -> bool:
    """Return whether a value is a JSON value as it is; an object of a subclass (an enum of strings) is not."""
    if type(value) in _NATIVE:
        return True
    if type(value) is list:
        return all(map(is_native, value))
    return type(value) is dict and all(type(key) is str and is_native(item) for key, item in value.items())


def _not_json(bound: Mapping[str, Any]) -> list[tuple[str, str]]:
    problems = []
    for name, value in bound.items():
        try:
            to_json({name: value})
        except (ValueError, RecursionError):
            problems.append((name, f"a {type(value).__name__} cannot be encoded as JSON"))
    return problems


def holds_secret(value: object) -> bool:
    """Return whether a value contains a secret, which would be encoded as asterisks."""
    return _has_secret(_ANY.dump_python(value, warnings=False))


def _has_secret(plain: object) -> bool:
    """Return whether the dumped fields of models and dataclasses contain a secret."""
    members = plain.values() if isinstance(plain, dict) else plain if isinstance(plain, list | tuple | set | frozenset) else ()
    return isinstance(plain, SecretStr | SecretBytes) or any(map(_has_secret, members))


_ANY: Final = TypeAdapter[Any](Any)
