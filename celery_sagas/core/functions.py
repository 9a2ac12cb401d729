"""The functions that users decorate, and their task options: what they must be like."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, Final

from celery_sagas.errors import DefinitionError

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_LEADING: Final = {"task": "self", "state": "order: Order", "session": "session: Session"}
#: Task options that a step cannot have, with what to do instead.
_REFUSED: Final = {
    "pydantic": "A step's arguments are validated anyway: remove it",
    "name": "A step is named {saga}.{function}; formerly= keeps earlier names alive",
    "if_exists": "It says what a starter does: a handler has if_missing",
    "if_missing": "It says what a handler does: a starter has if_exists",
}


def qualified_name_of(function: object, what: str = "a step") -> str:
    """Return module and qualified name of the function of a step, or of an aggregator, for errors.

    Raises:
        DefinitionError: It is not a plain function.
    """
    names = [getattr(function, name, None) for name in ("__module__", "__qualname__", "__name__")]
    if not callable(function) or isinstance(function, type) or not all(isinstance(name, str) for name in names):
        kind = function.__name__ if isinstance(function, type) else type(function).__name__
        raise DefinitionError(f"the {what.split()[-1]} {kind}", f"{what} is a plain function", "Decorate a def")
    return f"{names[0]}.{names[1]}"


def location_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and qualified name of a function: defining it again there replaces it."""
    return function.__module__, function.__qualname__


def is_synchronous(function: Callable[..., Any]) -> bool:
    """Return whether a function runs to its end when it is called."""
    return not any(
        check(function) for check in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    )


def check_handler(subject: str, function: Callable[..., Any], *, bind: bool, is_given_session: bool = False) -> None:
    """Refuse anything but a synchronous function of a state and the named arguments of a message.

    Args:
        subject: The step, for the error.
        function: The function.
        bind: Whether the task comes before the state.
        is_given_session: Whether a session, or a connection, comes after the state.
    """
    if not is_synchronous(function):
        raise DefinitionError(subject, "a step is a plain function", "Celery tasks are synchronous: use def, without yield")
    parameters = _parameters(subject, function)
    first = [*(["task"] if bind else []), "state", *(["session"] if is_given_session else [])]
    leading = len(first)
    if len(parameters) < leading or any(parameter.kind not in _POSITIONAL for parameter in parameters[:leading]):
        what, shown = " and ".join(f"the {each}" for each in first), ", ".join(_LEADING[each] for each in first)
        raise DefinitionError(subject, f"it does not take {what} first", f"def {function.__name__}({shown}, …)")
    if is_given_session and parameters[leading - 1].kind is Parameter.POSITIONAL_ONLY:
        raise DefinitionError(
            subject, "its session cannot be given by name", f"Remove the / after {parameters[leading - 1].name}"
        )
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
    """Refuse a task option that is almost one of our keywords: Celery accepts any name."""
    for option in options:
        if near := get_close_matches(option, keywords, n=1, cutoff=0.75):
            raise DefinitionError(subject, f"{option}= is no option", f"Do you mean {near[0]}=?")


def check_if_missing(step: str, function: Callable[..., Any], handler: Callable[..., Any], *, leading: int) -> None:
    """Refuse a function that cannot take its arguments: a ``Missing``, then the message's arguments by name."""
    check_handler(step, function, bind=False)
    check_fits(step, function, handler, leading=leading, what="its if_missing function", first="missing")


def check_fits(
    step: str, function: Callable[..., Any], handler: Callable[..., Any], *, leading: int, what: str, first: str
) -> None:
    """Refuse a function that does not take something first, then the arguments of a handler's message by name.

    The first parameters of the handler, of which there are ``leading``, are not the message's.
    """
    arguments = _parameters(step, handler)[leading:]
    try:
        inspect.signature(function).bind(None, **{parameter.name: None for parameter in arguments})
    except (TypeError, ValueError) as exc:
        shown = ", ".join([first, *(parameter.name for parameter in arguments)])
        raise DefinitionError(step, f"{what} does not fit the message: {exc}", f"def function({shown})") from exc
    if not (is_synchronous(function) and is_synchronous(type(function).__call__)):  # it may be an object
        raise DefinitionError(step, f"{what} is no plain function", "Use def, without yield")


def _parameters(subject: str, function: Callable[..., Any]) -> list[Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as exc:
        raise DefinitionError(subject, "a step is a plain function", "Decorate a def") from exc
