"""What a handler's code does with its instance, as far as that can be read: what it sends, schedules, sets and completes."""

import ast
import logging
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType
from typing import Final, TypeVar

from celery_sagas.core.graph.calls import Reading
from celery_sagas.core.graph.labels import code, expression
from celery_sagas.core.graph.scopes import STATE, Code, Scope, Value, is_a, within
from celery_sagas.core.graph.signatures import Ref, event_of, refs_of
from celery_sagas.core.graph.sources import source_of
from celery_sagas.core.status import text_of

ThingT = TypeVar("ThingT")

#: What is said of a step whose code cannot be read.
NO_SOURCE: Final = "its source is not available"


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


@dataclass(frozen=True)
class ScheduleCall:
    """One call of ``schedule``."""

    steps: tuple[Ref, ...]
    when: str  #: "after HOUR", from the source of the arguments


@dataclass
class HandlerCode:
    """What a handler's code does; each thing once, whether it does it always or under a condition."""

    sends: list[SendCall] = field(default_factory=list)
    timeouts: list[ScheduleCall] = field(default_factory=list)
    undone: list[Ref] = field(default_factory=list)  #: the steps of ``compensate(then=)``
    statuses: list[str] = field(default_factory=list)  #: those that it sets
    events: list[str] = field(default_factory=list)  #: those that it publishes
    notes: list[str] = field(default_factory=list)  #: what could not be read
    compensates: bool = False
    completes: bool = False
    replies: bool = False
    sets_unknown: bool = False  #: it sets a status that could not be read
    is_read: bool = True  #: there is source


def read_code(reading: Reading) -> HandlerCode:
    """Read the code of a step's handler, and of what it calls with the instance. Nothing of it is run."""
    source = source_of(reading.step.function)
    if source is None:
        return HandlerCode(notes=[NO_SOURCE], is_read=False)
    scope = Scope(source.node, source.names)
    arguments = source.node.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    for name in names[reading.step.state_position :][:1]:
        scope.own[name].append(STATE)
    reader = _Reader(reading)
    reader.read(scope)
    return reader.found


@dataclass
class _Reader:
    reading: Reading
    found: HandlerCode = field(default_factory=HandlerCode)
    #: The functions that are being read, one called by the other.
    path: list[ast.AST] = field(default_factory=list)

    def read(self, scope: Scope) -> None:
        """Read the code of one function, then of those that it calls."""
        if scope.node in self.path:
            return
        self.path.append(scope.node)
        for node in within(scope.node):
            if isinstance(node, ast.Call):
                self._read_call(node, scope)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                self._read_assignment(node.targets if isinstance(node, ast.Assign) else [node.target], node.value, scope)
        self.path.pop()

    def _read_call(self, call: ast.Call, scope: Scope) -> None:
        if (name := _method_of_state(call, scope)) is not None and (read := _READ.get(name)):
            read(self, call, scope)
        elif self._is_publish(call, scope):
            for event in call.args[:1]:
                _add(self.found.events, event_of(event, scope))
        else:
            functions = list(self.reading.functions(call, scope))
            for function in functions:
                if function.outer is not None or function.has_state:
                    self.read(function)
            if not functions and _gets_state(call, scope) and not _is_harmless(call, scope):
                _add(self.found.notes, f"it gives its state to {code(call.func)}(), which is not read")

    def _is_publish(self, call: ast.Call, scope: Scope) -> bool:
        publish = self.reading.vocabulary.publish
        return any(isinstance(each, Value) and each.value is publish for each in scope.meanings(call.func))

    def _read_send(self, call: ast.Call, scope: Scope) -> None:
        self._read_sending(call, scope, is_gather=False)

    def _read_gather(self, call: ast.Call, scope: Scope) -> None:
        self._read_sending(call, scope, is_gather=True)

    def _read_sending(self, call: ast.Call, scope: Scope, *, is_gather: bool) -> None:
        given = self._keywords(call, scope)
        sent = call.args[0] if call.args else given.get("signatures" if is_gather else "signature")
        if sent is None:
            return
        then, otherwise, progress, undo = (
            self._refs(given.get(name), scope) for name in ("then", "otherwise", "progress", "undo")
        )
        within, after = (_text(given.get(name), scope) for name in ("within", "after"))
        tasks = self._refs(sent, scope) or (Ref(code(sent), is_known=False),)
        _add(self.found.sends, SendCall(tasks, then, otherwise, progress, undo, within, after, is_gather))

    def _read_schedule(self, call: ast.Call, scope: Scope) -> None:
        given = self._keywords(call, scope)
        target = call.args[0] if call.args else given.get("target")
        times = [f"{name} {text}" for name in ("every", "after", "at") if (text := _text(given.get(name), scope))]
        _add(self.found.timeouts, ScheduleCall(self._refs(target, scope), ", ".join(times)))

    def _read_compensate(self, call: ast.Call, scope: Scope) -> None:
        self.found.compensates = True
        for ref in self._refs(self._keywords(call, scope).get("then"), scope):
            _add(self.found.undone, ref)

    def _read_complete(self, call: ast.Call, scope: Scope) -> None:
        self.found.completes = True

    def _read_reply(self, call: ast.Call, scope: Scope) -> None:
        self.found.replies = True

    def _keywords(self, call: ast.Call, scope: Scope) -> dict[str, ast.expr]:
        """Return the arguments that a call gives by name; those of ``**name`` if it is a dictionary in the function."""
        given: dict[str, ast.expr] = {}
        for keyword in call.keywords:
            if keyword.arg is not None:
                given[keyword.arg] = keyword.value
            elif (named := _items(keyword.value, scope)) is not None:
                given.update(named)
            else:
                _add(self.found.notes, f"its call of {code(call.func)}() with **{code(keyword.value)} is not read whole")
        return given

    def _refs(self, node: ast.expr | None, scope: Scope) -> tuple[Ref, ...]:
        return () if node is None else refs_of(self.reading, node, scope)

    def _read_assignment(self, targets: list[ast.expr], value: ast.expr, scope: Scope) -> None:
        for target in targets:
            match target, value:
                case ast.Attribute(), _ if self._is_status(target, scope):
                    self._set_status(value, scope)
                case (ast.Tuple(elts=parts), ast.Tuple(elts=values)) if len(parts) == len(values):
                    for part, each in zip(parts, values, strict=True):
                        self._read_assignment([part], each, scope)

    def _is_status(self, target: ast.Attribute, scope: Scope) -> bool:
        return target.attr == self.reading.step.saga.status_by and scope.is_state(target.value)

    def _set_status(self, value: ast.expr, scope: Scope) -> None:
        meanings = scope.meanings(value)
        for meaning in meanings:
            status = text_of(_constant(meaning))
            if status is not None and status in self.reading.step.saga.statuses:
                _add(self.found.statuses, status)
            else:
                self._note_unknown(value)
        if not meanings:
            self._note_unknown(value)

    def _note_unknown(self, value: ast.expr) -> None:
        self.found.sets_unknown = True
        _add(self.found.notes, f"it sets a status that is not known: {code(value)}")


#: How each method of a saga is read.
_READ: Final = {
    "send": _Reader._read_send,
    "gather": _Reader._read_gather,
    "schedule": _Reader._read_schedule,
    "compensate": _Reader._read_compensate,
    "complete": _Reader._read_complete,
    "reply": _Reader._read_reply,
}


def _add(things: list[ThingT], thing: ThingT) -> None:
    if thing not in things:
        things.append(thing)


def _method_of_state(call: ast.Call, scope: Scope) -> str | None:
    """Return the name of the method of the state that is called, perhaps by another name."""
    for meaning in scope.meanings(call.func):
        match meaning:
            case Code(ast.Attribute(value=owner, attr=name), place) if place.is_state(owner):
                return name
    return None


def _gets_state(call: ast.Call, scope: Scope) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(scope.is_state(each) for each in given if isinstance(each, ast.Name))


def _is_harmless(call: ast.Call, scope: Scope) -> bool:
    """Return whether a call only looks at what it is given: it logs, or is of Python's own."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    values = [each.value for each in scope.meanings(owner) if isinstance(each, Value)]
    is_builtin = any(is_a(each, type) and each.__module__ == "builtins" for each in values)
    return is_builtin or any(is_a(each, logging.Logger, BuiltinFunctionType) for each in values)


def _text(node: ast.expr | None, scope: Scope) -> str:
    """Return the source of an argument; of a name of the function's own, what it was given."""
    if node is None:
        return ""
    meanings = scope.meanings(node) if isinstance(node, ast.Name) else []
    text = expression(meanings[0].node if len(meanings) == 1 and isinstance(meanings[0], Code) else node)
    return "" if text == "None" else text


def _items(node: ast.expr, scope: Scope) -> dict[str, ast.expr] | None:
    for meaning in scope.meanings(node):
        match meaning:
            case Code(ast.Dict(keys=keys, values=values)):
                named = zip(keys, values, strict=True)
                return {key.value: value for key, value in named if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return None


def _constant(meaning: Value | Code) -> object:
    if isinstance(meaning, Value):
        return meaning.value if is_a(meaning.value, str, Enum) else None
    return meaning.node.value if isinstance(meaning.node, ast.Constant) else None
