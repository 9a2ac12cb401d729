"""Encode state as text and decode it. Every stored state can be loaded: its text is decoded and compared before it is written."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from celery_sagas.core.comparison import differences
from celery_sagas.core.encoding import PROBLEM, REMEDY, UndecodedError, check_decoded
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.state import State
from celery_sagas.errors import BUGS, InvalidState, NewerState, UnreadableState, problems_text

Problems = list[tuple[str, str]]

#: The most problems that an error names: a message may have a million.
_MAX_PROBLEMS: Final = 20
_MAX_PATH_CHARACTERS: Final = 200


def load(definition: SagaDefinition, key: str, data: str, schema_version: int) -> tuple[State, dict[str, Any]]:
    """Decode a stored state.

    Returns:
        The state, and the stored fields that this code does not know, for writing them back. (Inside a nested model unknown
        fields are kept only if the model says ``extra="allow"``.)

    Raises:
        NewerState: Newer code wrote it.
        UnreadableState: It is not a JSON object, ``upgrade`` failed, or it does not validate.
    """
    if schema_version > definition.schema_version:
        raise NewerState(definition.name, key, schema_version, definition.schema_version)
    fields = decode(definition, key, data)
    upgraded = schema_version < definition.schema_version
    if upgraded:
        fields = _upgrade(definition, key, fields, schema_version)
    unknown = {} if definition.cls.model_config.get("extra") == "allow" else _unknown(definition, fields)
    try:
        if unknown or upgraded:
            data = to_json({name: value for name, value in fields.items() if name not in unknown}).decode()
        return definition.cls.model_validate_json(data), unknown
    except ValidationError as exc:
        raise UnreadableState(definition.name, key, problems_text(validation_problems(exc))) from exc
    except BUGS as exc:
        raise UnreadableState(definition.name, key, f"its validation raised {type(exc).__name__}") from exc


def decode(definition: SagaDefinition, key: str, data: str) -> dict[str, Any]:
    """Return the stored fields as JSON values, as they are.

    Raises:
        UnreadableState: They are no JSON object, or encoded with another codec, or key.
    """
    try:
        check_decoded(data)
        fields = from_json(data)
    except UndecodedError as exc:
        raise UnreadableState(definition.name, key, PROBLEM, REMEDY) from exc
    except (ValueError, TypeError) as exc:  # TypeError: half a surrogate pair
        raise UnreadableState(definition.name, key, f"it is no JSON ({exc})") from exc
    if not isinstance(fields, dict):
        raise UnreadableState(definition.name, key, "it is no JSON object")
    return fields


def dump(definition: SagaDefinition, key: str, state: State, unknown: Mapping[str, Any]) -> str:
    """Encode a state, and check that it can be loaded again.

    Raises:
        InvalidState: A field is unset, cannot be encoded, does not validate, or would come back changed.
    """
    text = _encode(definition, key, state)
    try:
        loaded = definition.cls.model_validate_json(text)
    except ValidationError as exc:
        raise InvalidState(definition.name, key, _unencodable(definition, state) or validation_problems(exc)) from exc
    except BUGS as exc:
        raise InvalidState(definition.name, key, [("", f"its validation raised {type(exc).__name__}")]) from exc
    suspect = "\\u0000" in text or "NaN" in text or "Infinity" in text
    if problems := (_limited(_unstorable("", from_json(text))) if suspect else []) or _limited(differences(state, loaded)):
        raise InvalidState(definition.name, key, problems)
    if unknown:
        text = to_json({**unknown, **from_json(text)}).decode()
    return text


def encoded_fields(state: State) -> dict[str, Any]:
    """Return the fields of a state as JSON values; without those that cannot be encoded, as an instance that ends may have."""
    try:
        fields: dict[str, Any] = from_json(_json(state))
    except BUGS:
        fields = {}
        for name in state.__dict__.keys() & type(state).model_fields.keys():
            with suppress(*BUGS):
                fields |= from_json(_json(state, include={name}))
    return fields


def validation_problems(error: ValidationError) -> Problems:
    """Return path and text of each problem, without the values: they may be secret."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return _limited((".".join(map(str, problem["loc"])), problem["msg"]) for problem in found)


def _upgrade(definition: SagaDefinition, key: str, fields: dict[str, Any], schema_version: int) -> dict[str, Any]:
    try:
        upgraded = definition.cls.upgrade(fields, schema_version)
    except BUGS as exc:
        problem = f"upgrade() from schema version {schema_version} raised {type(exc).__name__}"
        raise UnreadableState(definition.name, key, problem) from exc
    if not isinstance(upgraded, dict):
        raise UnreadableState(definition.name, key, f"upgrade() from schema version {schema_version} returned no dict")
    return upgraded


def _unknown(definition: SagaDefinition, fields: dict[str, Any]) -> dict[str, Any]:
    known = definition.fields
    return {name: value for name, value in fields.items() if name not in known} if fields.keys() - known else {}


def _encode(definition: SagaDefinition, key: str, state: State) -> str:
    held = state.__dict__
    unset = [(name, "it is not set, and has no default") for name in definition.fields if name not in held]
    if unset:
        raise InvalidState(definition.name, key, unset)
    try:
        text = _json(state).decode()
    except BUGS as exc:
        problems = _unencodable(definition, state) or [("", f"its encoding raised {type(exc).__name__}")]
        raise InvalidState(definition.name, key, problems) from exc
    return text


def _json(state: State, **selection: Any) -> bytes:
    return state.__pydantic_serializer__.to_json(state, by_alias=True, round_trip=True, warnings=False, **selection)


def _unencodable(definition: SagaDefinition, state: State) -> Problems:
    """Return the fields that cannot be encoded as JSON text, or whose text cannot be parsed."""
    problems: Problems = []
    for name in definition.cls.model_fields:
        try:
            from_json(_json(state, include={name}))
        except BUGS:
            problems.append((name, f"a {type(state.__dict__[name]).__name__} cannot be encoded as JSON"))
    return problems


def _unstorable(path: str, value: object) -> Iterator[tuple[str, str]]:
    """Yield the values that JSON text can hold but databases refuse."""
    if isinstance(value, str) and "\0" in value:
        yield path, "it contains the character U+0000"
    elif isinstance(value, float) and value - value != 0:
        yield path, "it is no finite number"
    elif isinstance(value, dict | list):
        for part, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _unstorable(path, part)
            yield from _unstorable(f"{path}.{part}" if path else str(part), member)


def _limited(problems: Iterator[tuple[str, str]]) -> Problems:
    first = [(path[:_MAX_PATH_CHARACTERS], text) for path, text in itertools.islice(problems, _MAX_PROBLEMS)]
    more = sum(1 for _ in problems)
    return [*first, ("", f"and {more} more")] if more else first
