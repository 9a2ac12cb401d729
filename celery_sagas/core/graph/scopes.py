"""What names in a function's code stand for: the expressions that its own names are given, and the objects of its module."""

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, EnumMeta
from importlib.util import resolve_name
from inspect import getattr_static
from types import ModuleType
from typing import Any, Final

from celery_sagas.core.graph.sources import Function, parameters

#: How many calls are followed, one in the other: functions may call themselves.
DEPTH: Final = 6
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_ADDING: Final = {"append", "extend", "add", "insert"}


@dataclass(frozen=True)
class Value:
    """An object that a name stands for."""

    value: Any


@dataclass(frozen=True)
class Code:
    """An expression, or a function in a function, that a name stands for, and where it is written."""

    node: ast.AST
    scope: "Scope"


Meaning = Value | Code


class _State:
    """Stands for the instance on which a handler runs."""


STATE: Final = Value(_State())
#: There is no such attribute, or module.
NOTHING: Final = object()


@dataclass(eq=False)
class Scope:
    """The names of one function, while its code is read."""

    node: Function
    outside: Mapping[str, Any]
    own: dict[str, list[Meaning]] = field(default_factory=dict)  #: no meaning: it cannot be told
    outer: "Scope | None" = None  #: of the function in which this one is defined
    depth: int = 0  #: how many calls lead to it

    def __post_init__(self) -> None:
        """Find what the function gives to its own names."""
        _Names(self).find()

    @property
    def may_go_on(self) -> bool:
        """Whether the functions that it calls are followed."""
        return self.depth < DEPTH

    def meanings(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> list[Meaning]:
        """Return what an expression may stand for: itself, unless it is a name, or one of several expressions.

        Args:
            node: The expression.
            seen: The names that are being looked up: they may refer to themselves.
        """
        match node:
            case ast.Name(id=name):
                return self._named(name, seen)
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.meanings(body, seen), *self.meanings(orelse, seen)]
            case ast.BoolOp(values=values):
                return [meaning for each in values for meaning in self.meanings(each, seen)]
            case ast.NamedExpr(value=value):
                return self.meanings(value, seen)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(node, owner, name, seen)
        return [Code(node, self)]

    def _named(self, name: str, seen: frozenset[str]) -> list[Meaning]:
        if name not in self.own:
            if self.outer is not None:
                return self.outer.meanings(ast.Name(name), seen)
            return [Value(self.outside[name])] if name in self.outside else []
        found, place = list[Meaning](), f"{id(self)}.{name}"
        for meaning in () if place in seen else self.own[name]:
            found += meaning.scope.meanings(meaning.node, seen | {place}) if isinstance(meaning, Code) else [meaning]
        return found

    def _attribute(self, node: ast.AST, owner: ast.expr, name: str, seen: frozenset[str]) -> list[Meaning]:
        values = [each.value for each in self.meanings(owner, seen) if isinstance(each, Value)]
        found = [attribute_of(value, name) for value in values]
        return [Value(each) for each in found if each is not NOTHING] or [Code(node, self)]

    @property
    def has_state(self) -> bool:
        """Whether one of its own names is the instance on which the handler runs."""
        return any(self.is_state(ast.Name(name)) for name in self.own)

    def is_state(self, node: ast.AST) -> bool:
        """Return whether an expression is the instance on which the handler runs."""
        return any(meaning is STATE for meaning in self.meanings(node))


def is_a(value: Any, *types: type) -> bool:
    """Return whether a value is of a type by its true one, not by ``__class__``, for which a lazy proxy looks up its object."""
    return issubclass(type(value), types)


def attribute_of(value: Any, name: str) -> Any:
    """Return an attribute of a module, a class or a member of an ``Enum``, without running any code; else ``NOTHING``."""
    if is_a(value, Enum):
        return value.__dict__.get({"value": "_value_", "name": "_name_"}.get(name, ""), NOTHING)
    if is_a(value, ModuleType):
        return object.__getattribute__(value, "__dict__").get(name, NOTHING)
    if is_a(value, EnumMeta) and name in value._member_map_:
        return value._member_map_[name]
    return getattr_static(value, name, NOTHING) if is_a(value, type) else NOTHING


def within(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a function does: not the code of those that are defined in it."""
    body = node.body if isinstance(node, ast.FunctionDef) else [node.body] if isinstance(node, ast.Lambda) else [node]
    waiting = list(reversed(body))
    while waiting:
        each = waiting.pop()
        yield each
        if not isinstance(each, _DEFINITIONS):
            waiting += reversed(list(ast.iter_child_nodes(each)))


class _Names:
    """Finds what a function gives to its own names."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.free: set[str] = set()
        self.found: dict[str, list[Meaning]] = {each.arg: [] for each in _all_parameters(scope.node)}

    def find(self) -> None:
        """Add them to the scope, beside the arguments that it was made with."""
        for node in within(self.scope.node):
            self._look_at(node)
        for name in self.free:
            self.found.pop(name, None)
        for name, meanings in self.found.items():
            self.scope.own.setdefault(name, []).extend(meanings)

    def _look_at(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._give(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
                self._give(target, value)
            case ast.AugAssign(target=target, value=value):
                self._give(target, value)
            case ast.For(target=target, iter=each) | ast.comprehension(target=target, iter=each):
                self._give(target, ast.Starred(each))
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                self._add(name, Code(node, self.scope) if isinstance(node, ast.FunctionDef) else None)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=how), args=[*_, added]) if how in _ADDING:
                self._extend(name, added)
            case _:
                self._look_at_the_rest(node)

    def _look_at_the_rest(self, node: ast.AST) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                for name, value in _imported(node, self.scope.outside):
                    self._add(name, None if value is NOTHING else Value(value))
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self.free |= set(names)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                self._add(name, None)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._add(name, None)
            case ast.MatchMapping(rest=str(name)):
                self._add(name, None)

    def _give(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id=name), _:
                self._add(name, Code(value, self.scope))
            case (ast.Tuple(elts=targets) | ast.List(elts=targets), ast.Tuple(elts=values) | ast.List(elts=values)):
                if len(targets) == len(values) and not any(isinstance(each, ast.Starred) for each in (*targets, *values)):
                    for one, other in zip(targets, values, strict=True):
                        self._give(one, other)

    def _add(self, name: str, meaning: Meaning | None) -> None:
        self.found.setdefault(name, []).extend([] if meaning is None else [meaning])

    def _extend(self, name: str, added: ast.expr) -> None:
        """Note what is added to a list of the function's own; one of another function stays what it is."""
        if name in self.found:
            self._add(name, Code(added, self.scope))


def _all_parameters(node: Function) -> list[ast.arg]:
    return [*parameters(node), *(each for each in (node.args.vararg, node.args.kwarg) if each is not None)]


def _imported(node: ast.Import | ast.ImportFrom, outside: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names that an import in a function gives; only modules that are imported already are looked into."""
    if isinstance(node, ast.Import):
        for each in node.names:
            name = each.name if each.asname else each.name.partition(".")[0]
            yield each.asname or name, sys.modules.get(name, NOTHING)
        return
    package, relative = outside.get("__package__") or "", "." * node.level + (node.module or "")
    module: Any = sys.modules.get(resolve_name(relative, package) if node.level and package else relative, NOTHING)
    for each in node.names:
        submodule: Any = sys.modules.get(f"{getattr(module, '__name__', '')}.{each.name}", NOTHING)
        found = NOTHING if module is NOTHING else attribute_of(module, each.name)
        yield each.asname or each.name, submodule if found is NOTHING else found
