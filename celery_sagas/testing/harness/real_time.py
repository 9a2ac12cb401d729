"""Real time that a handler reads beside the virtual time of a test."""

import ast
import inspect
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

#: Functions that read the real time.
_FUNCTIONS: tuple[Any, ...] = (time.time, time.time_ns, time.localtime, time.gmtime)
#: Methods of these classes that do.
_METHODS = {"now", "utcnow", "today"}
#: Django's function, by its module and name; Django may not be there.
_DJANGOS = ("django.utils.timezone", "now")


class RealTimeWarning(UserWarning):
    """A handler reads the real time, which does not pass in a test as the test says."""


def warn_of_real_time(function: Callable[..., Any]) -> None:
    """Warn of each line of a function that reads the real time, as far as its source shows it."""
    for file, line, call in _found_in(function):
        warnings.warn_explicit(
            f"{function.__qualname__} calls {call}: the real time does not pass in a test as the test says. "
            "Use order.saga.now, or give the time as an argument",
            RealTimeWarning,
            file,
            line,
        )


@lru_cache(maxsize=1024)
def _found_in(function: Callable[..., Any]) -> list[tuple[str, int, str]]:
    """Return the file, the line and the source of each call that reads the real time."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        names = inspect.getclosurevars(function)
    except (
        OSError,
        TypeError,
        ValueError,
        SyntaxError,
    ):  # no source of a function, or a name without a value
        return []
    file = inspect.getsourcefile(function) or ""
    calls = [call for call in _calls(tree) if _reads_time(_resolve(call.func, names))]
    return [(file, first + call.lineno - 1, ast.unparse(call)) for call in calls]


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _resolve(node: ast.expr, names: inspect.ClosureVars) -> Any:
    """Return the object that an expression of names and attributes stands for; ``None`` if modules and classes do not say it."""
    if isinstance(node, ast.Name):
        return {**names.builtins, **names.globals, **names.nonlocals}.get(node.id)
    owner = _resolve(node.value, names) if isinstance(node, ast.Attribute) else None
    if isinstance(node, ast.Attribute) and isinstance(owner, ModuleType | type):  # any other object may do anything
        return getattr(owner, node.attr, None)
    return None


def _reads_time(function: Any) -> bool:
    if not isinstance(function, BuiltinFunctionType | FunctionType):
        return False
    owner = getattr(function, "__self__", None)
    is_method = (owner is datetime or owner is date) and function.__name__ in _METHODS
    return is_method or function in _FUNCTIONS or (function.__module__, function.__name__) == _DJANGOS
