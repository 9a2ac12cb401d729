"""Which tasks and steps an expression names: a signature, a chain, a list of them, a name."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from celery_sagas.core.graph.calls import Reading
from celery_sagas.core.graph.labels import code
from celery_sagas.core.graph.scopes import Code, Scope, Value, is_a, within
from celery_sagas.core.message import Message


class Ref(NamedTuple):
    """A task, as code names it."""

    name: str
    is_known: bool = True  #: else the name is the source's text


#: Functions of Celery's that make a signature of a task's name, and the one that makes a chain.
_BY_NAME: Final = {"signature", "Signature", "subtask"}
_CHAIN: Final = "chain"
_COLLECTIONS: Final = (list, tuple, set, sorted)


def refs_of(reading: Reading, node: ast.AST, scope: Scope) -> tuple[Ref, ...]:
    """Return the tasks that an expression may be signatures of; what cannot be told is named by its source."""
    return tuple(dict.fromkeys(_Search(reading).find(node, scope)))


@dataclass
class _Search:
    """The search for the tasks of one expression; it comes to each part of the code once, however that refers to itself."""

    reading: Reading
    seen: set[Code] = field(default_factory=set)

    def find(self, node: ast.AST, scope: Scope) -> list[Ref]:
        meanings, found = scope.meanings(node), list[Ref]()
        for meaning in meanings:
            if isinstance(meaning, Value):
                found += self._of_value(meaning.value) or [_unknown(node)]
            elif meaning not in self.seen:
                self.seen.add(meaning)
                found += self._of_code(meaning.node, meaning.scope)
        return found if meanings else [_unknown(node)]

    def _of_value(self, value: Any) -> list[Ref]:
        given = value if type(value) in (list, tuple, set, frozenset) else [value]
        names = [each if is_a(each, str) else self.reading.vocabulary.task_name(each) for each in given]
        return [Ref(name) for name in names if name is not None]

    def _of_code(self, node: ast.AST, scope: Scope) -> Sequence[Ref]:
        match node:
            case ast.Constant(value=str(name)):
                return [Ref(name)]
            case ast.Constant(value=None):
                return []
            case ast.Call():
                return self._of_call(node, scope)
            case ast.Subscript(value=ast.Attribute(attr="tasks"), slice=named):
                return self.find(named, scope)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._chain([left, right], scope)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [*self.find(left, scope), *self.find(right, scope)]
            case ast.BinOp(left=value, op=ast.Mult()) | ast.Starred(value=value):
                return self.find(value, scope)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [ref for part in parts for ref in self.find(part, scope)]
            case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
                return self.find(part, scope)
        return [_unknown(node)]

    def _of_call(self, node: ast.Call, scope: Scope) -> Sequence[Ref]:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = self._fork().find(owner, scope) if owner is not None else [_unknown(node)]
        if not named or any(ref.is_known for ref in named):  # .s(), .si(), .set() …; of nothing, if it refers to itself
            return [ref for ref in named if ref.is_known]
        if node.args and (name in _BY_NAME or _is_collection(node.func, scope)):
            return self.find(node.args[0], scope)
        if node.args and name == _CHAIN:
            return self._chain(node.args, scope)
        return list(self._returned(node, scope)) or [_unknown(node)]

    def _returned(self, call: ast.Call, scope: Scope) -> Iterator[Ref]:
        """Yield the tasks of the signatures that a function returns."""
        for function in self.reading.functions(call, scope):
            for value in _returns(function):
                yield from self.find(value, function)

    def _chain(self, parts: Iterable[ast.expr], scope: Scope) -> list[Ref]:
        found = [self._fork().find(part, scope) for part in parts]
        name = " | ".join(" or ".join(ref.name for ref in refs) for refs in found)
        return [Ref(name, is_known=all(ref.is_known for refs in found for ref in refs))]

    def _fork(self) -> "_Search":
        return _Search(self.reading, set(self.seen))


def _unknown(node: ast.AST) -> Ref:
    return Ref(code(node), is_known=False)


def _is_collection(function: ast.expr, scope: Scope) -> bool:
    return any(isinstance(each, Value) and any(each.value is one for one in _COLLECTIONS) for each in scope.meanings(function))


def _returns(function: Scope) -> Iterator[ast.expr]:
    if isinstance(function.node, ast.Lambda):
        yield function.node.body
    else:
        found = (each.value for each in within(function.node) if isinstance(each, ast.Return))
        yield from (value for value in found if value is not None)


def event_of(node: ast.AST, scope: Scope) -> str:
    """Return the name of the class of an event, or the source's text."""
    for meaning in scope.meanings(node):
        for cls in _classes_of(meaning):
            if is_a(cls, type) and issubclass(cls, Message):
                return str(cls.__qualname__)
    return code(node)


def _classes_of(meaning: Value | Code) -> list[Any]:
    if isinstance(meaning, Value):
        return [type(meaning.value)]
    if isinstance(meaning.node, ast.Call):
        return [each.value for each in meaning.scope.meanings(meaning.node.func) if isinstance(each, Value)]
    return []
