"""Expressions that choose instances by their states: ``total > 100 and lines.0.sku == "x"``.

They are written as in Python, and are not run as Python: see ``parse`` for all that they may have.
"""

import ast
import json
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias, get_args, get_origin
from uuid import UUID

import pydantic
from pydantic import BaseModel, TypeAdapter

from celery_sagas.core.keys import unwrap
from celery_sagas.core.saga import SagaDefinition, resolve_fields
from celery_sagas.errors import MisuseError
from celery_sagas.operate.patching import NOTHING
from celery_sagas.operate.redact import redacted

#: The most characters of an expression, levels of nesting in it, and parts of a path.
CHARACTERS: Final = 4_000
DEPTH: Final = 20

#: Names of fields and keys, and positions in lists, as texts.
Path: TypeAlias = tuple[str, ...]
#: Returns whether an expression holds for a state, JSON values by the names of fields.
Test: TypeAlias = Callable[[Any], bool]
#: Returns the annotation of the values at a path; of the items, if these are lists and that is asked.
TypeOf: TypeAlias = Callable[[Path, bool], Any]

#: What is stored as text, and compared as what it is.
_TYPES: Final[Mapping[Any, TypeAdapter[Any]]] = {
    **{kind: TypeAdapter(kind) for kind in (Decimal, date, datetime, timedelta, UUID)},
    **dict.fromkeys(
        (pydantic.AwareDatetime, pydantic.NaiveDatetime, pydantic.PastDatetime, pydantic.FutureDatetime), TypeAdapter(datetime)
    ),
    **dict.fromkeys((pydantic.PastDate, pydantic.FutureDate), TypeAdapter(date)),
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_ORDERS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNORDERED: Final = (bool, NoneType, list, dict)
_ALLOWED: Final = (
    "It has names, paths such as lines.0.sku, numbers, texts, lists, true, false, null, comparisons, in, and, or, not"
)
#: A text or a number, which stay, or a name or a bracket with the parts of a path behind it.
_PARTS: Final = re.compile(
    r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\d[\w.]*)|(?P<name>[^\W\d]\w*|\])(?P<parts>(?:\.\w+)+)""", re.DOTALL
)


def any_type(path: Path, of_items: bool) -> Any:
    """Stand in for annotations where none are known."""
    return Any


def where_of(saga: SagaDefinition, text: str, patterns: Sequence[str]) -> Test:
    """Return whether an expression holds for a stored state of a saga: it sees nothing that is hidden.

    Args:
        saga: Its definition.
        text: The expression.
        patterns: Of the names that are hidden, as in ``saga_hidden``.

    Raises:
        MisuseError: It is none, or it names a field that the saga does not have, or one that is hidden.
        DefinitionError: The saga's fields cannot be resolved.
    """
    resolve_fields(saga.cls)

    def type_of(path: Path, of_items: bool) -> Any:
        _check_path(saga, path, patterns)
        return _type_at(saga, path, of_items=of_items)

    test = parse(text, type_of)
    return lambda state: test(redacted(saga, state, patterns))


def parse(text: str, type_of: TypeOf = any_type) -> Test:
    """Return whether an expression holds for JSON values.

    It has names of fields, and paths (``lines.0.sku``, ``names["a b"]``); numbers, texts, true, false, null, as JSON and Python
    spell them, and lists of them; ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in``, ``not in``; ``and``, ``or``, ``not``; and
    parentheses. A path alone holds if the value is true.

    A comparison does not hold with a value that is not there, nor between values of two types; but these are not equal (``!=``).

    Args:
        text: The expression.
        type_of: Returns the annotation of what is at a path. Decimals, times and ids, which are stored as texts, are compared
            as what they are, where it says so. It is asked for each path once, at least, and may refuse it.

    Raises:
        MisuseError: It is no such expression, or too long, or nested too deeply.
    """
    if len(text) > CHARACTERS:
        raise MisuseError(f"the expression has {len(text):,} characters, and {CHARACTERS:,} are allowed")
    try:
        with warnings.catch_warnings(action="ignore"):  # of backslashes
            tree = ast.parse(_PARTS.sub(_subscripts, text.strip()), mode="eval")
    except SyntaxError as exc:
        raise MisuseError(f"the expression cannot be read: {exc.msg}", _ALLOWED) from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise MisuseError("the expression cannot be read", _ALLOWED) from exc
    return _Parser(type_of).condition(tree.body, 1)


class _Operand(NamedTuple):
    """One side of a comparison."""

    path: Path | None
    value: Any = None  #: if it is no path

    def of(self, state: Any) -> Any:
        """Return its value in a state."""
        return self.value if self.path is None else _at(state, self.path)


class _Parser:
    """Makes tests of the nodes of an expression."""

    def __init__(self, type_of: TypeOf) -> None:
        self._type_of = type_of

    def condition(self, node: ast.expr, depth: int) -> Test:
        """Return the test of a node that holds or does not."""
        if depth > DEPTH:
            raise MisuseError(f"the expression is nested more than {DEPTH} levels deep")
        match node:
            case ast.BoolOp(op, values):
                tests = [self.condition(each, depth + 1) for each in values]
                whole = all if isinstance(op, ast.And) else any
                return lambda state: whole(test(state) for test in tests)
            case ast.UnaryOp(ast.Not(), inner):
                test = self.condition(inner, depth + 1)
                return lambda state: not test(state)
            case ast.Compare(left, ops, others):
                operands = [_operand(each) for each in (left, *others)]
                tests = [self._comparison(*each) for each in zip(ops, operands, operands[1:], strict=False)]
                return lambda state: all(test(state) for test in tests)
        operand = _operand(node)
        if operand.path is not None:
            self._type_of(operand.path, False)
        elif not isinstance(operand.value, bool):
            raise MisuseError(f"the expression has {operand.value!r} where it needs a condition", _ALLOWED)
        return lambda state: operand.of(state) is True

    def _comparison(self, op: ast.cmpop, left: _Operand, right: _Operand) -> Test:
        compare, is_in = _comparison_of(op), isinstance(op, ast.In | ast.NotIn)
        sides = [(left, False), (right, is_in)]
        kinds = [self._type_of(each.path, of_items) if each.path else None for each, of_items in sides]
        of_left = _reader(left, kinds[1] if kinds[0] is None else kinds[0])  # a literal has the type of the other side
        of_right = _reader(right, kinds[0] if kinds[1] is None else kinds[1])
        return lambda state: compare(of_left(state), of_right(state))


def _subscripts(match: re.Match[str]) -> str:
    """Return a path with its parts in brackets, as Python can parse it."""
    if match["parts"] is None:
        return match[0]
    return match["name"] + "".join(f'["{part}"]' for part in match["parts"][1:].split("."))


def _operand(node: ast.expr) -> _Operand:
    """Return the path or the literal that a node is."""
    parts: list[str] = []
    while isinstance(node, ast.Subscript):
        parts.append(_part(node.slice))
        node = node.value
    if isinstance(node, ast.Name) and (parts or node.id not in _CONSTANTS):
        if len(parts) >= DEPTH:
            raise MisuseError(f"a path of the expression has more than {DEPTH} parts")
        return _Operand((node.id, *reversed(parts)))
    if parts:
        raise _refused(node)
    return _Operand(None, _value(node, in_list=False))


def _part(node: ast.expr) -> str:
    match node:
        case ast.Constant(str(value)):
            return value
        case ast.Constant(int(value)) if _is_finite(value) and not isinstance(value, bool):
            return str(value)
    raise _refused(node)


def _value(node: ast.expr, *, in_list: bool) -> Any:
    match node:
        case ast.Name(name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Constant(value) if value is None or isinstance(value, bool | str):
            return value
        case ast.Constant(int() | float() as value) if _is_finite(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)) if _is_finite(value) and not isinstance(value, bool):
            return -value
        case ast.List(items) | ast.Tuple(items) if not in_list:
            return [_value(each, in_list=True) for each in items]
    raise _refused(node)


def _is_finite(value: float) -> bool:
    """Return whether JSON can have a number; not if it is whole and so large that it has no text."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refused(node: ast.AST) -> MisuseError:
    return MisuseError(f"the expression has what it may not have ({type(node).__name__})", _ALLOWED)


def _reader(operand: _Operand, kind: Any) -> Callable[[Any], Any]:
    """Return what reads an operand in a state, as a value of a type."""
    if kind not in _TYPES:
        return operand.of
    if operand.path is not None:
        return lambda state: _converted(kind, operand.of(state))
    value = _converted(kind, operand.value)
    if any(each is NOTHING for each in (value if isinstance(value, list) else [value])):
        raise MisuseError(f"the expression compares {json.dumps(operand.value)} with a {kind.__name__}, which it is not")
    return lambda _: value


def _converted(kind: Any, value: Any) -> Any:
    """Return a JSON value, or each item of a list, as what it is; ``NOTHING`` in the place of what is no such value."""
    if isinstance(value, list):
        return [_converted(kind, each) for each in value]
    if value is None:
        return value
    if isinstance(value, bool):
        return NOTHING
    try:
        converted = _TYPES[kind].validate_python(value)
    except ValueError:
        return NOTHING
    return converted.replace(tzinfo=UTC) if isinstance(converted, datetime) and converted.tzinfo is None else converted


def _comparison_of(op: ast.cmpop) -> Callable[[Any, Any], bool]:
    """Return the function for two values, either of which may be missing."""
    if isinstance(op, ast.Is | ast.IsNot):
        raise _refused(op)
    if order := _ORDERS.get(type(op)):
        return lambda left, right: _is_comparable(left, right) and order(left, right)
    holds = _is_in if isinstance(op, ast.In | ast.NotIn) else _is_equal
    wanted = isinstance(op, ast.Eq | ast.In)

    def compare(left: Any, right: Any) -> bool:
        if left is NOTHING or right is NOTHING:
            return False
        return holds(left, right) is wanted

    return compare


def _is_comparable(left: Any, right: Any) -> bool:
    kind = _kind(left)
    return kind is _kind(right) and kind not in (*_UNORDERED, type(NOTHING))


def _is_equal(left: Any, right: Any) -> bool:
    return _kind(left) is _kind(right) and bool(left == right)


def _is_in(item: Any, container: Any) -> bool | None:
    """Return whether a value is an item of a list, a part of a text, or a key of an object; ``None``: it can be none."""
    if isinstance(container, list):
        return any(_is_equal(item, each) for each in container)
    return item in container if isinstance(item, str) and isinstance(container, str | dict) else None


def _kind(value: Any) -> type:
    return float if isinstance(value, int | Decimal) and not isinstance(value, bool) else type(value)


def _at(value: Any, path: Path) -> Any:
    """Return the value at a path, or ``NOTHING``."""
    for part in path:
        if isinstance(value, list) and _is_position(part) and int(part) < len(value):
            value = value[int(part)]
        else:
            value = value.get(part, NOTHING) if isinstance(value, dict) else NOTHING
    return value


def _is_position(part: str) -> bool:
    return part.isascii() and part.isdecimal()


def _check_path(saga: SagaDefinition, path: Path, patterns: Sequence[str]) -> None:
    """Refuse a path that leads to what is hidden, or from no field.

    Raises:
        MisuseError: It does.
    """
    name, shown = path[0], ".".join(path)
    if name not in saga.fields and saga.cls.model_config.get("extra") != "allow":
        raise MisuseError(f"{saga.name} has no field {name}", f"Its fields: {', '.join(saga.fields)}")
    likely = [_nested(path, in_lists=in_lists) for in_lists in (True, False)]  # a position may be a key
    if all(redacted(saga, state, patterns) != state for state in likely):
        raise MisuseError(f"{shown} of {saga.name} is hidden, or has hidden parts, which an expression could find out")


def _nested(path: Path, *, in_lists: bool) -> Any:
    """Return a state that has a value at a path, as the only item of lists."""
    value: Any = 1
    for part in reversed(path):
        value = [value] if in_lists and _is_position(part) else {part: value}
    return value


def _type_at(saga: SagaDefinition, path: Path, *, of_items: bool) -> Any:
    """Return the annotation of the values at a path, without what marks it; ``Any`` if it is not known."""
    annotation: Any = saga.cls
    for part in path:
        annotation = _type_of_part(annotation, part)
    return _type_of_items(annotation) if of_items else annotation


def _type_of_part(annotation: Any, part: str) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        found = (info.annotation for name, info in fields if (info.serialization_alias or name) == part)
        return unwrap(next(found, Any))[0]
    parts = get_args(annotation)
    if issubclass(_origin(annotation), Mapping) and len(parts) == len(("key", "value")):
        return unwrap(parts[1])[0]
    return _type_of_items(annotation)


def _type_of_items(annotation: Any) -> Any:
    parts = [part for part in get_args(annotation) if part is not ...]
    is_of_items = not issubclass(_origin(annotation), Mapping) and len(parts) == 1
    return unwrap(parts[0])[0] if is_of_items else Any


def _origin(annotation: Any) -> type:
    origin = get_origin(annotation)
    return origin if isinstance(origin, type) else object
