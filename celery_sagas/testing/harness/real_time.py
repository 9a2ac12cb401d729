"""Real time that a handler reads beside the virtual time of a test."""

import ast
import inspect
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date, datetime
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
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):  # no source, or not that of a function alone
        return
    file = inspect.getsourcefile(function) or ""
    for call in _calls(tree):
        if _reads_time(_resolve(call.func, inspect.getclosurevars(function))):
            warnings.warn_explicit(
                f"{function.__qualname__} calls {ast.unparse(call)}: the real time does not pass in a test as the test says. "
                "Use order.saga.now, or give the time as an argument",
                RealTimeWarning,
                file,
                first + call.lineno - 1,
            )


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def _resolve(node: ast.expr, names: inspect.ClosureVars) -> Any:
    """Return the object that an expression of names and attributes stands for, or ``None``."""
    if isinstance(node, ast.Name):
        return {**names.builtins, **names.globals, **names.nonlocals}.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _resolve(node.value, names)) is not None:
        return getattr(owner, node.attr, None)
    return None


def _reads_time(function: Any) -> bool:
    if function in _FUNCTIONS:
        return True
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    is_method = owner in (datetime, date) and name in _METHODS
    return is_method or (getattr(function, "__module__", ""), name) == _DJANGOS
