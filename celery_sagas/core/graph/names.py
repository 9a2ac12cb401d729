"""The source of a function, which is parsed and never run, and what its names stand for; when in doubt, that is unknown."""

import ast
import builtins
import inspect
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum, EnumMeta
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

#: The most characters of a line of a drawing, and of a piece of code within one.
LINE, CODE = 60, 40
#: The value of what cannot be told, that of the instance on which a handler runs, and that of an attribute of the instance.
UNKNOWN, STATE, MEMBER = object(), object(), object()
_parsed: Final = lru_cache(maxsize=32)(ast.parse)


class FunctionSource(NamedTuple):
    """A function's syntax tree, and what names stand for that are not its own."""

    node: ast.FunctionDef | ast.Lambda
    outside: Mapping[str, Any]  #: the names of its closure, of its module, and the built-in ones

    @property
    def parameters(self) -> list[str]:
        """Its parameters, first those that can be given by position."""
        return [each.arg for each in (*self.node.args.posonlyargs, *self.node.args.args, *self.node.args.kwonlyargs)]


def source_of(function: Callable[..., Any]) -> FunctionSource | None:
    """Return the source of a function, below its decorators; ``None`` if there is none, as in an interactive session."""
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return None
    try:
        tree = _parsed("".join(inspect.findsource(function)[0]))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    outside = ChainMap(_closure_of(function), function.__globals__, vars(builtins))
    sources = (FunctionSource(node, outside) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda))
    found = [source for source in sources if _is_at(source, function.__code__)]
    return found[0] if len(found) == 1 else None


def _is_at(source: FunctionSource, code: CodeType) -> bool:
    """Return whether this is where a function begins: at its first decorator, if it has any."""
    node = source.node
    first = min((each.lineno for each in getattr(node, "decorator_list", ())), default=node.lineno)
    expected = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return (first, getattr(node, "name", "<lambda>"), *source.parameters) == (code.co_firstlineno, code.co_name, *expected)


def _closure_of(function: FunctionType) -> dict[str, Any]:
    """Return the names of the functions around a function that it uses, with their values."""
    closure: dict[str, Any] = dict.fromkeys(function.__code__.co_freevars, object())  # it may have no value yet
    for name, cell in zip(closure, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            closure[name] = cell.cell_contents
    return closure


class Ref(NamedTuple):
    """A task, by a signature of it, or an event, as code names it."""

    name: str
    is_known: bool = True  #: else the name is the source's text


@dataclass(frozen=True, eq=False)
class Meaning:
    """One thing that an expression may stand for; a list stands for its elements."""

    node: ast.expr  #: where it is written
    value: Any = UNKNOWN  #: an object, or a ``Ref``


@dataclass
class Scope:
    """The names of a function, while it is read in its order."""

    outside: Mapping[str, Any]
    names: dict[str, list[Meaning] | None]  #: its own ones; ``None``: it cannot be told what such a name stands for
    changing: Collection[str] = ()  #: those that are bound more than once
    returned: list[Meaning] = field(default_factory=list)

    def meanings(self, node: ast.Name) -> list[Meaning]:
        """Return what a name stands for."""
        if node.id in self.names:
            return self.names[node.id] or [Meaning(node)]
        return objects(node, self.outside.get(node.id, UNKNOWN))

    def inside(self, node: ast.AST) -> "Scope":
        """Return the scope of a part of its code; a function or a comprehension in it has names of its own."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return Scope(self.outside, self.names | dict.fromkeys(bound_in(node)), self.changing)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            return Scope(self.outside, self.names | dict.fromkeys(bound_in(node)))
        return self


def bound_in(node: ast.AST) -> list[str]:
    """Return the names that code binds, as often as it does, with those of functions and comprehensions in it."""
    parts = list(ast.walk(node))[1:]
    names = [each.id for each in parts if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)]
    others = [getattr(each, kind, None) for each in parts for kind in ("name", "asname", "rest")]
    parameters = [each.arg for each in parts if isinstance(each, ast.arg)]
    return [*names, *parameters, *(each.partition(".")[0] for each in others if isinstance(each, str))]


def is_state(meanings: Iterable[Meaning]) -> bool:
    """Return whether an expression may be the instance."""
    return any(each.value is STATE for each in meanings)


def is_a(value: Any, *types: type) -> bool:
    """Return whether a value is of a type by its true one, not by ``__class__``, for which a lazy proxy looks up its object."""
    return issubclass(type(value), types)


def objects(node: ast.expr, value: Any) -> list[Meaning]:
    """Return the object that an expression stands for, or the elements of a collection."""
    return [Meaning(node, each) for each in (value if type(value) in (list, tuple, set, frozenset) else [value])]


def attribute_of(value: Any, name: str) -> Any:
    """Return an attribute of a module, a class or a member of an ``Enum``, without running any code; else ``UNKNOWN``."""
    if is_a(value, Enum):
        return value.__dict__.get({"value": "_value_", "name": "_name_"}.get(name, ""), UNKNOWN)
    if is_a(value, ModuleType):
        return object.__getattribute__(value, "__dict__").get(name, UNKNOWN)
    if is_a(value, EnumMeta) and name in value._member_map_:
        return value._member_map_[name]
    return inspect.getattr_static(value, name, UNKNOWN) if is_a(value, type) else UNKNOWN


def shortened(text: str, characters: int = LINE) -> str:
    """Return the beginning of a text, in one printable line."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text[: characters + 1])
    return shown if len(shown) <= characters else f"{shown[: characters - 1]}…"


def expression(node: ast.AST) -> str:
    """Return the beginning of an expression."""
    return shortened(ast.unparse(node), CODE)


def code(node: ast.AST) -> str:
    """Return the beginning of an expression; without the arguments of calls, which may be secret."""
    return expression(_WithoutArguments().visit(deepcopy(node)))


class _WithoutArguments(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.Call:
        return ast.Call(self.visit(node.func), [ast.Name("…")], [])
