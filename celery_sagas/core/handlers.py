"""What the function of a step must look like, as far as that needs no annotation."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Final

from celery_sagas.errors import DefinitionError

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
#: Task options that a step cannot have, with what to do instead.
_REFUSED: Final = {
    "pydantic": "A step's arguments are validated anyway: remove it",
    "name": "A step is named {saga}.{function}; formerly= keeps earlier names alive",
    "if_exists": "It says what a starter does: a handler has if_missing",
    "if_missing": "It says what a handler does: a starter has if_exists",
}


def place_of(function: object) -> str:
    """Return module and qualified name of a step's function, for errors, or raise ``DefinitionError``.

    Raises:
        DefinitionError: It is no plain function.
    """
    names = [getattr(function, name, None) for name in ("__module__", "__qualname__", "__name__")]
    if not callable(function) or isinstance(function, type) or not all(isinstance(name, str) for name in names):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        raise DefinitionError(f"the step {kind}", "a step is a plain function", "Decorate a def")
    return f"{names[0]}.{names[1]}"


def check_handler(subject: str, function: Callable[..., Any], *, bind: bool) -> None:
    """Refuse what is no synchronous function of a state and the named arguments of a message."""
    if any(check(function) for check in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
        raise DefinitionError(subject, "a step is a plain function", "Celery tasks are synchronous: use def, without yield")
    parameters = _parameters(subject, function)
    leading = 2 if bind else 1
    if len(parameters) < leading or any(parameter.kind not in _POSITIONAL for parameter in parameters[:leading]):
        what = "the task and the state" if bind else "the state"
        raise DefinitionError(subject, f"it does not take {what} first", f"def {function.__name__}({_SHOWN[bind]}, …)")
    for parameter in parameters[leading:]:
        if parameter.name == "self":
            raise DefinitionError(subject, "a parameter of the message is named 'self'", "Celery calls the task that: rename it")
        if parameter.kind not in _NAMED:
            raise DefinitionError(
                subject, f"the parameter {parameter} cannot be given by name", "Name every argument of the message"
            )


def check_options(subject: str, options: Mapping[str, Any]) -> None:
    """Refuse task options that a step cannot have."""
    for option, remedy in _REFUSED.items():
        if options.get(option):
            raise DefinitionError(subject, f"{option}={options[option]!r} cannot be set on a step", remedy)
    if options.get("serializer") == "pickle":
        raise DefinitionError(subject, "serializer='pickle' cannot be set on a step", "Messages are JSON")


def check_spelling(subject: str, options: Mapping[str, Any], *keywords: str) -> None:
    """Refuse a task option that is almost one of our keywords: Celery takes whatever it is given."""
    for option in options:
        if near := get_close_matches(option, keywords, n=1, cutoff=0.75):
            raise DefinitionError(subject, f"{option}= is no option", f"Do you mean {near[0]}=?")


def check_if_missing(step: str, function: Callable[..., Any], handler: Callable[..., Any], *, bind: bool) -> None:
    """Refuse a function that cannot take what it gets: a ``Missing``, then the message's arguments by name."""
    check_handler(step, function, bind=False)
    arguments = _parameters(step, handler)[2 if bind else 1 :]
    try:
        inspect.signature(function).bind(None, **{parameter.name: None for parameter in arguments})
    except TypeError as exc:
        shown = ", ".join(["missing", *(parameter.name for parameter in arguments)])
        raise DefinitionError(step, f"its if_missing function does not fit the message: {exc}", f"def function({shown})") from exc


def _parameters(subject: str, function: Callable[..., Any]) -> list[Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as exc:
        raise DefinitionError(subject, "a step is a plain function", "Decorate a def") from exc


_SHOWN: Final = {False: "order: Order", True: "self, order: Order"}
