"""What a handler's code does with its instance, as far as that can be read: what it sends, schedules, sets and completes."""

import ast
import builtins
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from inspect import getattr_static, unwrap
from itertools import takewhile
from logging import Logger
from types import FunctionType
from typing import Any, Final, TypeVar

from celery_sagas.core.graph import names
from celery_sagas.core.graph.names import MEMBER, STATE, FunctionSource, Meaning, Ref, Scope, code, is_a, is_state, source_of
from celery_sagas.core.message import Message
from celery_sagas.core.status import text_of
from celery_sagas.core.step import StepDefinition

ThingT = TypeVar("ThingT")

#: What is said of a step whose code cannot be read.
NO_SOURCE: Final = "its source is not available"
#: How many functions are followed that call each other with the instance, and without it.
DEPTH, DEPTH_WITHOUT_STATE = 5, 3
_OUTCOMES: Final = ("then", "otherwise", "progress", "undo")
#: What the arguments of a call stand for, by their position or name; under no name those of ``*given`` and ``**named``.
Given = dict[Any, list[Meaning]]


@dataclass(frozen=True)
class Vocabulary:
    """How objects that handlers name are recognised: the rules know no Celery."""

    task_name: Callable[[Any], str | None]  #: the name of a task, also of a step, or of a signature; ``None``: it is neither
    publish: Any  #: the function that publishes an event


@dataclass(frozen=True)
class SendCall:
    """One call of ``send`` or ``gather``."""

    tasks: tuple[Ref, ...]
    then: tuple[Ref, ...] = ()
    otherwise: tuple[Ref, ...] = ()
    progress: tuple[Ref, ...] = ()
    undo: tuple[Ref, ...] = ()
    within: str = ""  #: the source of the argument
    after: str = ""
    is_gather: bool = False


@dataclass
class HandlerCode:
    """What a handler's code does; each thing once, whether it does it always or under a condition."""

    sends: list[SendCall] = field(default_factory=list)
    links: list[tuple[Ref, str]] = field(default_factory=list)  #: where else it leads, and how: "after HOUR"
    statuses: list[str] = field(default_factory=list)  #: those that it sets
    events: list[str] = field(default_factory=list)  #: those that it publishes
    notes: list[str] = field(default_factory=list)  #: what could not be read
    compensates: bool = False
    completes: bool = False
    replies: bool = False
    sets_unknown: bool = False  #: it sets a status that could not be read
    is_read: bool = True  #: there is source


def read_code(step: StepDefinition, vocabulary: Vocabulary) -> HandlerCode:
    """Read the code of a step's handler, and of what it calls with the instance. Nothing of it is run."""
    source = source_of(step.function)
    if source is None:
        return HandlerCode(notes=[NO_SOURCE], is_read=False)
    reader = _Reader(step, vocabulary)
    state = source.parameters[step.state_position :][:1]  # none, if a decorator takes any arguments
    reader.read_function(source, {name: [Meaning(ast.Name(name), STATE)] for name in state})
    return reader.found


@dataclass
class _Reader:
    """Reads code in its order; of an expression, it finds what that may stand for."""

    step: StepDefinition
    vocabulary: Vocabulary
    found: HandlerCode = field(default_factory=HandlerCode)
    path: list[ast.AST] = field(default_factory=list)  #: the functions that are being read, one called by the other

    def read_function(self, source: FunctionSource, given: Given) -> list[Meaning]:
        """Read a function that is given some parameters, and return what it may return."""
        bound = Counter(names.bound_in(source.node))
        changing = {name for name, times in bound.items() if times > 1}
        known = {name: each for name, each in given.items() if name not in changing or is_state(each)}
        scope = Scope(source.outside, dict.fromkeys(bound) | known, changing)
        self.path.append(source.node)
        body = source.node.body
        self._read(body if isinstance(body, list) else [ast.Return(body)], scope)
        self.path.pop()
        return scope.returned

    # ---- statements

    def _read(self, nodes: Iterable[ast.AST], scope: Scope) -> None:
        for each in nodes:
            if isinstance(each, ast.expr):
                self._meanings(each, scope)
            else:
                self._read_statement(each, scope)

    def _read_statement(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
                given = [self._meanings(value, scope) for value in values]
                for target, meanings in zip(targets, given, strict=True):
                    self._assign(target, meanings, scope)
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign(target, self._meanings(value, scope), scope)
            case ast.Return(value=ast.expr() as value):
                scope.returned += self._meanings(value, scope)
            case ast.For():
                self._read(self._iterated(node, scope), scope)
            case _:
                self._read(ast.iter_child_nodes(node), scope.inside(node))

    def _iterated(self, loop: ast.For | ast.comprehension, scope: Scope) -> list[ast.AST]:
        """Give a loop's name what it runs over; return the rest of the loop."""
        self._assign(loop.target, [each for each in self._meanings(loop.iter, scope) if each.value is not STATE], scope)
        return [*loop.body, *loop.orelse] if isinstance(loop, ast.For) else [*loop.ifs]

    def _assign(self, target: ast.expr, meanings: list[Meaning], scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.names[name] = None if name in scope.changing else meanings
            case ast.Attribute(value=owner, attr=name):
                if is_state(self._meanings(owner, scope)) and name == self.step.saga.status_by:
                    self._set_status(meanings or [Meaning(target)])
            case _:
                self._meanings(target, scope)

    def _set_status(self, meanings: list[Meaning]) -> None:
        for meaning in meanings:
            status = text_of(meaning.value) if is_a(meaning.value, str, Enum) else None
            if status is not None and status in self.step.saga.statuses:
                _add(self.found.statuses, status)
            else:
                self.found.sets_unknown = True
                _add(self.found.notes, f"it sets a status that is not known: {code(meaning.node)}")

    # ---- expressions

    def _meanings(self, node: ast.expr, scope: Scope) -> list[Meaning]:
        """Read an expression, and return what it may stand for."""
        match node:
            case ast.Name(ctx=ast.Load()):
                return scope.meanings(node)
            case ast.Name(id=name):
                scope.names[name] = None
            case ast.Constant(value=value):
                return [Meaning(node, value)]
            case ast.Attribute(ctx=ast.Load()):
                return [each for owner in self._meanings(node.value, scope) for each in self._attribute(node, owner.value)]
            case ast.Attribute():
                self._assign(node, [], scope)
            case ast.Call():
                return self._read_call(node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._meanings(test, scope)
                return [*self._meanings(body, scope), *self._meanings(orelse, scope)]
            case ast.BoolOp(values=parts) | ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return [each for part in parts for each in self._meanings(part, scope)]
            case ast.Starred(value=value):
                return self._meanings(value, scope)
            case ast.ListComp(elt=part, generators=loops) | ast.GeneratorExp(elt=part, generators=loops):
                inside = scope.inside(node)
                for loop in loops:
                    self._read(self._iterated(loop, inside), inside)
                return self._meanings(part, inside)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._chain(node, [self._meanings(left, scope), self._meanings(right, scope)])
            case _:
                self._read(ast.iter_child_nodes(node), scope.inside(node))
        return [Meaning(node)]

    def _attribute(self, node: ast.Attribute, owner: Any) -> list[Meaning]:
        if owner is STATE:
            return [Meaning(node, MEMBER)]
        if is_a(owner, Ref, Logger):  # .set() of a signature and the like, .info() and the like
            return [Meaning(node, owner)]
        task = self.vocabulary.task_name(owner)  # .s() and the like
        return names.objects(node, names.attribute_of(owner, node.attr)) if task is None else [Meaning(node, Ref(task))]

    def _refs(self, meanings: Iterable[Meaning]) -> tuple[Ref, ...]:
        """Return the tasks that signatures, tasks and texts name."""
        found = dict[Ref, None]()
        for each in meanings:
            name = each.value if is_a(each.value, str) else self.vocabulary.task_name(each.value)
            if is_a(each.value, Ref):
                found[Ref(*each.value)] = None
            elif each.value is not None:
                found[Ref(code(each.node), is_known=False) if name is None else Ref(name)] = None
        return tuple(found)

    def _chain(self, node: ast.expr, parts: Iterable[list[Meaning]]) -> list[Meaning]:
        found = [self._refs(each) for each in parts]
        if not all(found):
            return [Meaning(node)]
        name = " | ".join(" or ".join(ref.name for ref in refs) for refs in found)
        return [Meaning(node, Ref(name, is_known=all(ref.is_known for refs in found for ref in refs)))]

    # ---- calls

    def _read_call(self, node: ast.Call, scope: Scope) -> list[Meaning]:
        functions = self._meanings(node.func, scope)
        positional = list(takewhile(lambda each: not isinstance(each, ast.Starred), node.args))
        given: Given = {number: self._meanings(each, scope) for number, each in enumerate(positional)}
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr="append" | "extend" | "insert") if scope.names.get(name) is not None:
                scope.names[name] = [*(scope.names[name] or ()), *given.get(len(given) - 1, [])]
        if rest := node.args[len(positional) :]:
            given[""] = [meaning for each in rest for meaning in self._meanings(each, scope)]
        given |= {each.arg or "": self._meanings(each.value, scope) for each in node.keywords}
        return [each for function in functions for each in self._called(function, node, given)]

    def _called(self, called: Meaning, node: ast.Call, given: Given) -> list[Meaning]:
        """Read the call of a function, and return what it may return."""
        function, name = called.value, getattr(node.func, "attr", getattr(node.func, "id", ""))
        first, near = given.get(0, []), (self.step.saga.cls.__module__, unwrap(self.step.function).__module__)
        if function is MEMBER:
            return self._called_method(getattr(called.node, "attr", ""), node, given)
        if function is self.vocabulary.publish:
            for ref in self._refs(first or given.get("event", [])):
                _add(self.found.events, ref.name)
        elif is_a(function, FunctionType) and unwrap(function).__module__ in near:
            return self._entered(function, node, given)
        elif is_a(function, Ref):
            return [Meaning(node, function)]
        elif is_a(function, type) and issubclass(function, Message):
            return [Meaning(node, Ref(function.__qualname__))]
        elif any(function is each for each in (list, tuple, set, sorted)):
            return first
        elif name in ("signature", "Signature", "subtask"):
            return [Meaning(node, ref) for ref in self._refs(first)]
        elif name == "chain" and len(given) > 1 and "" not in given and not node.keywords:
            return self._chain(node, given.values())
        else:
            self._note_unread(function, node, given)
        return [Meaning(node)]

    def _called_method(self, name: str, node: ast.Call, given: Given) -> list[Meaning]:
        """Read the call of a method of the instance."""
        match name:
            case "send" | "gather":
                sent = given.get(0, given.get("signature" if name == "send" else "signatures", []))
                then, otherwise, progress, undo = (self._refs(given.get(each, [])) for each in _OUTCOMES)
                tasks, within, after = self._refs(sent), _text(given.get("within", [])), _text(given.get("after", []))
                tasks = tasks or (Ref(code(node), is_known=False),)
                _add(self.found.sends, SendCall(tasks, then, otherwise, progress, undo, within, after, name == "gather"))
            case "schedule":
                times = [f"{each} {text}" for each in ("every", "after", "at") if (text := _text(given.get(each, [])))]
                self._link(given.get(0, given.get("target", [])), ", ".join(times) or "scheduled")
            case "compensate":
                self.found.compensates = True
                self._link(given.get("then", []), "once all is undone")
            case "complete":
                self.found.completes = True
            case "reply":
                self.found.replies = True
            case _:
                method = getattr_static(self.step.saga.cls, name, None)
                if is_a(method, FunctionType) and method.__module__.partition(".")[0] not in ("celery_sagas", "pydantic"):
                    return self._entered(method, node, given, [Meaning(node, STATE)])
                self._note_unread(method, node, given)
        for keyword in node.keywords:
            if keyword.arg is None:
                _add(self.found.notes, f"its call of {code(node.func)}() with **{code(keyword.value)} is not read whole")
        return [Meaning(node)]

    def _link(self, to: list[Meaning], how: str) -> None:
        for ref in self._refs(to):
            _add(self.found.links, (ref, how))

    def _entered(self, function: FunctionType, node: ast.Call, given: Given, *first: list[Meaning]) -> list[Meaning]:
        """Read a function that is given the instance, or may make what is sent; return what it may return."""
        source, has_state = source_of(function), any(map(is_state, [*first, *given.values()]))
        if source is None or len(self.path) >= (DEPTH if has_state else DEPTH_WITHOUT_STATE):
            self._note_unread(function, node, given)
        elif source.node not in self.path:
            returned = self.read_function(source, self._parameters(source, given, first))
            return [Meaning(node, each.value) for each in returned] or [Meaning(node)]
        return [Meaning(node)]

    def _parameters(self, source: FunctionSource, given: Given, first: Iterable[list[Meaning]]) -> Given:
        """Return what a call gives to the parameters of a function, or what they have by default."""
        taken, found = source.node.args, Given()
        if "" not in given:
            defaults = zip(reversed(source.parameters), reversed([*taken.defaults, *taken.kw_defaults]), strict=False)
            outside = Scope(source.outside, {})
            found = {name: self._meanings(default, outside) for name, default in defaults if default is not None}
        positional = source.parameters[: len(taken.posonlyargs) + len(taken.args)]
        found |= zip(positional, [*first, *(each for name, each in given.items() if isinstance(name, int))], strict=False)
        return found | {name: each for name, each in given.items() if name in source.parameters}

    def _note_unread(self, function: Any, node: ast.Call, given: Given) -> None:
        """Note a call that is given the instance, unless it only looks at it: it logs, or is of Python's own."""
        is_harmless = is_a(function, Logger) or any(function is each for each in vars(builtins).values())
        if any(map(is_state, given.values())) and not is_harmless:
            _add(self.found.notes, f"it gives its state to {code(node.func)}(), which is not read")


def _text(argument: Iterable[Meaning]) -> str:
    """Return the source of an argument; of a name, that of what it was given."""
    return " or ".join(dict.fromkeys(names.expression(each.node) for each in argument if each.value is not None))


def _add(things: list[ThingT], thing: ThingT) -> None:
    if thing not in things:
        things.append(thing)
