"""The functions that a handler calls with its instance: local ones, those of its module, and the saga's methods."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from inspect import unwrap
from itertools import zip_longest
from types import FunctionType
from typing import Any, Final

from celery_sagas.core.graph.scopes import STATE, Code, Meaning, Scope, Value, is_a
from celery_sagas.core.graph.sources import Function, closure_of, source_of
from celery_sagas.core.step import StepDefinition

#: Packages whose methods do what they are documented to do.
_KNOWN_PACKAGES: Final = {__name__.partition(".")[0], "pydantic", "builtins"}


@dataclass(frozen=True)
class Vocabulary:
    """How objects that handlers name are recognised: the rules know no Celery."""

    task_name: Callable[[Any], str | None]  #: the name of a task, also of a step, or of a signature; ``None``: it is neither
    publish: Any  #: the function that publishes an event


@dataclass(frozen=True)
class Reading:
    """One step whose code is read."""

    step: StepDefinition
    vocabulary: Vocabulary

    def functions(self, call: ast.Call, scope: Scope) -> Iterator[Scope]:
        """Yield the functions that a call runs, with what it gives to them; those of other modules are left out."""
        for meaning in scope.meanings(call.func) if scope.may_go_on else ():
            match meaning:
                case Code(ast.FunctionDef() | ast.Lambda() as node, outer):
                    yield _entered(Scope(node, outer.outside, outer=outer, depth=scope.depth + 1), call, scope)
                case Code(ast.Attribute(value=owner, attr=name), place) if place.is_state(owner):
                    yield from self._sourced(self._method(name), call, scope, [STATE])
                case Value(function) if is_a(function, FunctionType) and self._is_near(function):
                    yield from self._sourced(function, call, scope, [])

    def _is_near(self, function: FunctionType) -> bool:
        return unwrap(function).__module__ in self._modules

    @cached_property
    def _modules(self) -> set[str]:
        """The modules of the saga and of the handler, which a decorator may hold."""
        handler = self.step.function
        held = [handler, unwrap(handler), *closure_of(handler).values()]
        return {self.step.saga.cls.__module__, *(each.__module__ for each in held if is_a(each, FunctionType))}

    def _method(self, name: str) -> FunctionType | None:
        """Return a method of the saga, its own or that of an abstract one."""
        for cls in self.step.saga.cls.__mro__:
            if cls.__module__.partition(".")[0] in _KNOWN_PACKAGES:
                continue
            if isinstance(found := vars(cls).get(name), FunctionType):
                return found
        return None

    def _sourced(self, function: FunctionType | None, call: ast.Call, scope: Scope, first: list[Meaning]) -> Iterator[Scope]:
        source = None if function is None else source_of(function)
        if source is not None:
            yield _entered(Scope(source.node, source.names, depth=scope.depth + 1), call, scope, first)


def _entered(scope: Scope, call: ast.Call, caller: Scope, first: list[Meaning] | None = None) -> Scope:
    """Give a function's parameters what a call gives to them, and what they have by default."""
    taken = scope.node.args
    names = [each.arg for each in (*taken.posonlyargs, *taken.args)]
    may_be_named = {each.arg for each in (*taken.args, *taken.kwonlyargs)}
    for name, meaning in zip(names, first or (), strict=False):
        scope.own[name].append(meaning)
    missing = dict(_defaults(scope.node))
    for name, given in zip(names[len(first or ()) :], call.args, strict=False):
        if isinstance(given, ast.Starred):
            break
        scope.own[name].append(Code(given, caller))
        missing.pop(name, None)
    for keyword in call.keywords:
        if keyword.arg in may_be_named:
            scope.own[keyword.arg].append(Code(keyword.value, caller))
            missing.pop(keyword.arg, None)
    for name, default in missing.items():
        scope.own[name].append(Code(default, scope))
    return scope


def _defaults(node: Function) -> Iterator[tuple[str, ast.expr]]:
    positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    for name, default in zip_longest(reversed(positional), reversed(node.args.defaults)):
        if default is not None:
            yield name, default
    for keyword, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if default is not None:
            yield keyword.arg, default
