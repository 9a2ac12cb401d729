"""The source of a function, as a syntax tree: it is parsed, and never run."""

import ast
import builtins
import inspect
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

Function = ast.FunctionDef | ast.Lambda


class FunctionSource(NamedTuple):
    """A function's syntax tree, and what it finds outside of itself."""

    node: Function
    names: Mapping[str, Any]  #: those of its closure, of its module, and the built-in ones


def source_of(function: Callable[..., Any]) -> FunctionSource | None:
    """Return the source of a function, below its decorators; ``None`` if there is none, as in an interactive session."""
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return None
    try:
        lines, _ = inspect.findsource(function)
        tree = _parsed("".join(lines))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    found = [node for node in _functions(tree) if _is_at(node, function)]
    return FunctionSource(found[0], _names_of(function)) if len(found) == 1 else None


@lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))


def _is_at(node: Function, function: FunctionType) -> bool:
    """Return whether a node is where a function begins: at its first decorator, if it has any."""
    code = function.__code__
    first = min((each.lineno for each in getattr(node, "decorator_list", ())), default=node.lineno)
    name = node.name if isinstance(node, ast.FunctionDef) else "<lambda>"
    taken, expected = [each.arg for each in parameters(node)], code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return (first, name, *taken) == (code.co_firstlineno, code.co_name, *expected)


def parameters(node: Function) -> list[ast.arg]:
    """Return the parameters of a function that can be given by position or by name: first those by position."""
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _names_of(function: FunctionType) -> Mapping[str, Any]:
    return ChainMap(closure_of(function), function.__globals__, vars(builtins))


def closure_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the names of the functions around a function that it uses, with their values."""
    if not isinstance(function, FunctionType):
        return {}
    closure: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # it has no value yet
            continue
    return closure
