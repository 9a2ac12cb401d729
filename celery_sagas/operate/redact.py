"""Redaction: values that nobody sees, in states and in other JSON values.

Hidden is what its declaration hides (``Field(repr=False)``, or a secret type), and what has a name that ``saga_hidden`` hides.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.hidden import marked, replaced
from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition, resolve_fields
from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import BUGS

#: In the place of a hidden value.
MARK: Final = "•••"
#: What lies deeper is hidden as a whole.
_DEEPEST: Final = 50


def redacted(saga: SagaDefinition, state: Any, patterns: Sequence[str]) -> Any:
    """Return a stored state with the mark in the place of what is hidden; ``None`` stays.

    A field that this code does not know is hidden if the saga hides any: newer or older code may have hidden it.

    Args:
        saga: Its definition.
        state: JSON values: the fields, if it is sound.
        patterns: Of names, as in ``saga_hidden``.

    Raises:
        DefinitionError: The saga's fields cannot be resolved.
    """
    resolve_fields(saga.cls)
    if not isinstance(state, Mapping):
        return MARK if saga.hidden and state is not None else redacted_names(state, patterns)
    return redacted_names({name: _redacted_field(saga, name, value) for name, value in state.items()}, patterns)


def redacted_names(value: Any, patterns: Sequence[str]) -> Any:
    """Return JSON values with the mark in the place of what has a hidden name, at any depth; ``None`` stays.

    Args:
        value: JSON values: arguments by name, or a message.
        patterns: Of names, as in ``saga_hidden``.
    """
    return _without_names(value, _expression(tuple(patterns)), 0)


def redacted_message(message: Any, patterns: Sequence[str]) -> Any:
    """Return a message, a signature as JSON values, with the mark in the place of what is hidden; ``None`` stays.

    Of a step, arguments are hidden as their declarations say, and those whose names a pattern hides, also where they were given
    by position; of an aggregator, what the type of its items hides. Of another task, what was given by position has no name, and
    is shown.

    Args:
        message: JSON values: a signature, also a chain; or an item.
        patterns: Of names, as in ``saga_hidden``.
    """
    return redacted_names(_without_arguments(message, _expression(tuple(patterns)), 0), patterns)


def redacted_item(aggregator: str, item: Any, patterns: Sequence[str]) -> Any:
    """Return an item with the mark in the place of what is hidden: what its type hides, if this code knows it, and names.

    Args:
        aggregator: Its name.
        item: JSON values.
        patterns: Of names, as in ``saga_hidden``.
    """
    definition = registry.aggregators.get(aggregator)
    if definition is None:
        return redacted_message(item, patterns)
    return redacted_names(_without_hidden(definition, item), patterns)


def _without_hidden(aggregator: AggregatorDefinition, item: Any) -> Any:
    try:
        return replaced(aggregator.items.annotation, item, _mark)
    except BUGS:  # it is nested too deeply, or not of the form that its annotation says
        return MARK


def _without_arguments(value: Any, hidden: re.Pattern[str], depth: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if depth >= _DEEPEST:
        return MARK
    if isinstance(value, list):
        return [_without_arguments(each, hidden, depth + 1) for each in value]
    shown = {name: _without_arguments(part, hidden, depth + 1) for name, part in value.items()}
    task = value.get("task")
    if not isinstance(task, str):
        return shown
    if aggregator := registry.aggregators.get(task):
        return {**shown, **_redacted_items(aggregator, shown)}
    step = registry.step_named(task)
    return shown if step is None else {**shown, **_redacted_arguments(step, shown, hidden)}


def _redacted_items(aggregator: AggregatorDefinition, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item of a message to an aggregator: its one argument, or its named arguments together."""
    args, kwargs = message.get("args"), message.get("kwargs")
    shown: dict[str, Any] = {}
    if isinstance(args, list):
        shown["args"] = [_without_hidden(aggregator, item) for item in args]
    if isinstance(kwargs, dict) and kwargs:
        shown["kwargs"] = _without_hidden(aggregator, kwargs)
    return shown


def _redacted_arguments(step: StepDefinition, message: Mapping[str, Any], hidden: re.Pattern[str]) -> dict[str, Any]:
    names, args, kwargs = list(step.arguments.annotations), message.get("args"), message.get("kwargs")
    shown: dict[str, Any] = {}
    if isinstance(args, list):
        named = [*names, *[""] * len(args)]
        shown["args"] = [_redacted_argument(step, *each, hidden) for each in zip(named, args, strict=False)]
    if isinstance(kwargs, dict):
        shown["kwargs"] = {name: _redacted_argument(step, name, value, hidden) for name, value in kwargs.items()}
    return shown


def _redacted_argument(step: StepDefinition, name: str, value: Any, hidden: re.Pattern[str]) -> Any:
    if value is None:
        return value
    if hidden.match(name):
        return MARK
    if name not in step.hidden:
        return value
    try:
        return replaced(step.arguments.annotations[name], value, _mark)
    except BUGS:
        return MARK


def _redacted_field(saga: SagaDefinition, name: str, value: Any) -> Any:
    info = saga.cls.model_fields.get(name)
    if value is None or not saga.hidden or (info is not None and name not in saga.hidden):
        return value
    if info is None:
        return MARK
    try:
        return replaced(marked(info), value, _mark)
    except BUGS:  # it is nested too deeply, or not of the form that its annotation says
        return MARK


def _mark(annotation: Any, value: Any) -> str:
    return MARK


def _without_names(value: Any, hidden: re.Pattern[str], depth: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if depth >= _DEEPEST:
        return MARK
    if isinstance(value, list):
        return [_without_names(each, hidden, depth + 1) for each in value]
    return {
        name: MARK if part is not None and hidden.match(str(name)) else _without_names(part, hidden, depth + 1)
        for name, part in value.items()
    }


@lru_cache(maxsize=64)
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return an expression that matches a name if one of the patterns does; without patterns it matches none."""
    return re.compile("|".join(map(translate, patterns)) or r"(?!)", re.IGNORECASE)
