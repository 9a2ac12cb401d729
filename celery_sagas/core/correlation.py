"""Correlation: the one rule by which a step's messages find their instance.

The rule is chosen when the step is defined; at run time it leads to an address or raises, and nothing else is tried.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from celery_sagas.core.keys import KeyProperty, key_text, unwrap
from celery_sagas.core.message import Message, SagaKey, members_of, missing_part, read_path
from celery_sagas.core.requests.answers import Failure, Gathered
from celery_sagas.errors import BUGS, CorrelationError, DefinitionError

#: The property of an address that holds the correlation key.
KEY: Final = "$key"
#: The property of an address that holds an instance's id.
ID: Final = "$id"

Reader: TypeAlias = Callable[[Mapping[str, Any]], object]
By: TypeAlias = str | Sequence[str] | Mapping[str, str | Reader]
Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SagaKeys:
    """The properties by which a saga's instances are found."""

    saga: str
    key: tuple[KeyProperty, ...]  #: more than one: a composite key
    alternate_keys: Mapping[str, KeyProperty]  #: in declared order
    formerly: tuple[str, ...] = ()  #: the saga's earlier names, which messages in flight may still carry


class Address(NamedTuple):
    """The address of a message's instance."""

    property: str  #: ``KEY``, ``ID`` or the name of an alternate key
    text: str  #: the canonical text, or the instance's id
    values: Mapping[str, object]  #: property to converted value; empty for an instance's id


@dataclass(frozen=True, slots=True)
class Source:
    """The place of a value in a message."""

    description: str
    read: Reader
    path: Path = ()  #: of names, the first one that of an argument; empty: a function reads it


@dataclass(frozen=True, slots=True)
class ArgumentRule:
    """A rule that finds the instance by values in the message."""

    step: str
    property: str  #: ``KEY`` or the name of an alternate key
    sources: tuple[tuple[KeyProperty, Source], ...]
    is_bare_id: bool = False  #: the field ``id`` of the ``Message``, which nearly always is the message's own id

    def describe(self) -> str:
        """Return the rule in one line."""
        return ", ".join(f"{part.field} from {source.description}" for part, source in self.sources)

    def correlate(self, arguments: Mapping[str, object], causation: Mapping[str, str]) -> Address:
        """Return the address that the validated arguments hold.

        Raises:
            CorrelationError: A value is missing, null, or does not become the property's type without loss.
        """
        values = {part.field: self._value(part, source, arguments) for part, source in self.sources}
        try:
            text = key_text([part.text(values[part.field]) for part, _ in self.sources])
        except ValueError as exc:
            raise CorrelationError(self.step, f"{self.describe()}: {exc}") from exc
        return Address(self.property, text, values)

    def _value(self, part: KeyProperty, source: Source, arguments: Mapping[str, object]) -> object:
        try:
            return part.convert(source.read(MappingProxyType(arguments)))
        except BUGS as exc:
            reason = str(exc) if isinstance(exc, ValueError) else repr(exc)
            raise CorrelationError(self.step, f"{part.field} from {source.description}: {reason}") from exc


@dataclass(frozen=True, slots=True)
class CausationRule:
    """A rule that finds the instance of this saga whose step caused the message."""

    property: ClassVar[str] = ID
    step: str
    keys: SagaKeys

    def describe(self) -> str:
        """Return the rule in one line."""
        return f"{_and(part.field for part in self.keys.key)} from the causation header"

    def correlate(self, arguments: Mapping[str, object], causation: Mapping[str, str]) -> Address:
        """Return the address that the causation holds: saga name to instance id.

        Raises:
            CorrelationError: No instance of this saga caused the message.
        """
        for name in (self.keys.saga, *self.keys.formerly):
            if name in causation:
                return Address(ID, causation[name], {})
        raise CorrelationError(self.step, self._ways())

    def _ways(self) -> str:
        saga, key = self.keys.saga, _and(part.field for part in self.keys.key)
        named = f"named {_or([key, *self.keys.alternate_keys])}"
        if len(self.keys.key) == 1:
            named = f"{named}, or {saga}_id, or marked SagaKey"
        return (
            f"no instance of {saga} caused it, and the step has no argument that leads to one. Send it from a step of {saga}, "
            f"or from a task that such a step sent; or give the step an argument, or its Message a field, {named}; or write by="
        )


Rule: TypeAlias = ArgumentRule | CausationRule


def check_own_key(rule: Rule, arguments: Mapping[str, object], saga: str, key: str) -> None:
    """Refuse a message addressed to one instance, such as a timeout or an answer, whose arguments name another.

    Args:
        rule: The rule of its step.
        arguments: The validated arguments.
        saga: The stored name of the instance's saga.
        key: The instance's key.

    Raises:
        CorrelationError: The arguments name another instance.
    """
    if not isinstance(rule, ArgumentRule) or rule.property != KEY or rule.is_bare_id:
        return
    try:
        named = rule.correlate(arguments, {}).text
    except CorrelationError:  # such as null: it names no other instance
        return
    if named != key:
        raise CorrelationError(rule.step, f"it is addressed to {saga} {key!r}, and names {named!r} in its arguments")


def choose_rule(keys: SagaKeys, *, step: str, parameters: Mapping[str, Any], starter: bool, by: By | None = None) -> Rule:
    """Choose the rule of a step: the first of these that applies.

    1. ``by=``;
    2. the parameter, or the field of the one ``Message`` parameter, that is marked ``SagaKey``; not for a composite key;
    3. parameters, or fields of that ``Message``, named as the key (all its parts), or as an alternate key;
    4. one that is named ``{saga}_id``; not for a composite key;
    5. the field ``id`` of that ``Message``; not for a composite key, never for a starter;
    6. the causation header; never for a starter.

    A starter is found by its key only, never by an alternate key.

    Args:
        keys: The properties of the step's saga.
        step: The step's name, for error texts.
        parameters: The message's parameters in order, with their resolved annotations; the state is not one of them.
        starter: Whether the step may begin an instance.
        by: A property's name, the names of a composite key, or a mapping of properties to dotted paths into the arguments
            or to functions of the arguments.

    Raises:
        DefinitionError: ``by=`` does not fit, marks are ambiguous, or no rule leads to a starter's key.
    """
    choice = _Choice(keys, step, parameters, starter)
    rule = choice.by(by) if by is not None else choice.marked() or choice.named() or choice.saga_id() or choice.bare_id()
    if rule is None and starter:
        raise choice.error("a starter must name its instance, and none of its arguments does", choice.remedy(keys.key))
    return rule or CausationRule(step, keys)


@dataclass(frozen=True)
class _Choice:
    """The rules that one step could have."""

    keys: SagaKeys
    step: str
    parameters: Mapping[str, Any]
    starter: bool

    @property
    def single(self) -> bool:
        return len(self.keys.key) == 1

    @cached_property
    def fields(self) -> dict[str, Path]:
        """The fields of the one ``Message`` parameter."""
        return {field: (name, field) for name, message in self.messages.items() for field in message.model_fields}

    @cached_property
    def messages(self) -> dict[str, type[Message]]:
        """The one ``Message`` parameter; empty if there is none, or more than one."""
        bare = {name: unwrap(annotation)[0] for name, annotation in self.parameters.items()}
        found = {name: kind for name, kind in bare.items() if isinstance(kind, type) and issubclass(kind, Message)}
        found = {name: kind for name, kind in found.items() if not issubclass(kind, Failure | Gathered)}  # they name no instance
        for kind in found.values():
            kind.model_rebuild(raise_errors=False)  # a mark may stand behind a forward reference
        return found if len(found) == 1 else {}

    @cached_property
    def places(self) -> dict[str, Path]:
        """The paths of values, by name: a parameter takes precedence over a field."""
        return self.fields | {name: (name,) for name in self.parameters}

    def marked(self) -> ArgumentRule | None:
        paths: list[Path] = [(name,) for name, annotation in self.parameters.items() if _is_marked(unwrap(annotation)[1])]
        if self.single and not paths:
            paths = self._marked_fields()
        if paths and not self.single:
            raise self.error("SagaKey cannot say which part of the composite key it marks", self.remedy(self.keys.key))
        if len(paths) > 1:
            raise self.error(f"SagaKey marks {_and(map('.'.join, paths))}, and the key is one value", self.remedy(self.keys.key))
        return self._key_at(paths[0]) if paths else None

    def _marked_fields(self) -> list[Path]:
        infos = {path: self.messages[path[0]].model_fields[path[1]] for path in self.fields.values()}
        return [path for path, info in infos.items() if _is_marked((*info.metadata, *unwrap(info.annotation)[1]))]

    def named(self) -> ArgumentRule | None:
        if all(part.field in self.places for part in self.keys.key):
            return self._rule(KEY, self.keys.key)
        if self.starter:
            return None
        return next((self._rule(name, (part,)) for name, part in self.keys.alternate_keys.items() if name in self.places), None)

    def saga_id(self) -> ArgumentRule | None:
        path = self.places.get(f"{self.keys.saga}_id")
        return self._key_at(path) if path and self.single else None

    def bare_id(self) -> ArgumentRule | None:
        path = self.fields.get("id")
        rule = self._key_at(path) if path and self.single and not self.starter else None
        return replace(rule, is_bare_id=True) if rule else None

    def by(self, by: By) -> ArgumentRule:
        names = (by,) if isinstance(by, str) else tuple(by) if isinstance(by, Mapping | tuple | list) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise self.error(f"by={by!r} names no property", self.remedy(self.keys.key))
        if isinstance(by, str) and "." in by:
            raise self._path_alone(by)
        name, parts = self._declared(names)
        if isinstance(by, Mapping):
            return ArgumentRule(self.step, name, tuple((part, self._given(by[part.field], part, parts)) for part in parts))
        if all(part.field in self.places for part in parts):
            return self._rule(name, parts)
        elsewhere = (self.marked() or self.saga_id() or self.bare_id()) if name == KEY else None
        if elsewhere is None:
            raise self.error(f"by= names {_and(names)}, and none of its arguments says where that stands", self.remedy(parts))
        return elsewhere

    def _declared(self, names: tuple[str, ...]) -> tuple[str, tuple[KeyProperty, ...]]:
        """Return the property that ``by=`` names, and its parts in their declared order."""
        key = tuple(part.field for part in self.keys.key)
        alternate = self.keys.alternate_keys.get(names[0]) if len(names) == 1 else None
        if set(names) == set(key):
            return KEY, self.keys.key
        if set(names) < set(key):
            raise self.error(f"by= names only {_and(names)} of the key {_and(key)}", self.remedy(self.keys.key))
        if alternate is None:
            problem = f"by= names {_and(names)}, and no {self.keys.saga} is found by that"
            raise self.error(problem, f"It is found by {_or([_and(key), *self.keys.alternate_keys])}; also_by= declares more")
        if self.starter:
            raise self.error(f"a starter is found by its key, and {names[0]} is an alternate key", self.remedy(self.keys.key))
        return alternate.field, (alternate,)

    def _given(self, target: object, part: KeyProperty, parts: tuple[KeyProperty, ...]) -> Source:
        if callable(target):
            return Source(f"the function {getattr(target, '__name__', type(target).__name__)}", target)
        path = tuple(target.split(".")) if isinstance(target, str) else ("",)
        if missing := self._missing(path):
            raise self.error(f"by= takes {part.field} from {target!r}, and there is no {missing}", self.remedy(parts))
        return _source(path)

    def _missing(self, path: Path) -> str:
        """Return the part of a path that cannot exist in the message; empty if all of it may."""
        return missing_part(path, self.parameters[path[0]]) if path[0] in self.parameters else f"argument {path[0]!r}"

    def _path_alone(self, by: str) -> DefinitionError:
        """Return the error for a path that is given without its property."""
        problem = f"by={by!r} is a path, and does not say which property stands there"
        if missing := self._missing(tuple(by.split("."))):
            return self.error(f"{problem}; and there is no {missing}", self.remedy(self.keys.key))
        others = ", …" if len(self.keys.key) > 1 else ""
        return self.error(problem, f'Write a mapping: by={{"{self.keys.key[0].field}": "{by}"{others}}}')

    def _rule(self, name: str, parts: tuple[KeyProperty, ...]) -> ArgumentRule:
        return ArgumentRule(self.step, name, tuple((part, _source(self.places[part.field])) for part in parts))

    def _key_at(self, path: Path) -> ArgumentRule:
        return ArgumentRule(self.step, KEY, ((self.keys.key[0], _source(path)),))

    def error(self, problem: str, remedy: str) -> DefinitionError:
        return DefinitionError(self.step, problem, remedy)

    def remedy(self, parts: tuple[KeyProperty, ...]) -> str:
        """Show how this step could name its instance."""
        names = [part.field for part in parts]
        arguments = f"Give it the argument{'s' * (len(names) > 1)} {_and(names)}"
        likely = {path[-1]: path for path in _examples(self.parameters)}
        others = iter([path for name, path in likely.items() if name not in names])
        paths = {name: self.places.get(name) or likely.get(name) or next(others, ()) for name in names}
        shown = ", ".join(f'"{name}": "{".".join(path)}"' for name, path in paths.items())
        return f"{arguments}, or say where it stands, such as by={{{shown}}}" if all(paths.values()) else arguments


def _source(path: Path) -> Source:
    return Source(f"argument {path[0]}" if len(path) == 1 else ".".join(path), partial(read_path, path), path)


def _is_marked(metadata: Iterable[object]) -> bool:
    return any(mark is SagaKey or isinstance(mark, SagaKey) for mark in metadata)


def _examples(parameters: Mapping[str, Any]) -> list[Path]:
    """Return paths that could lead to a key: parameters, and the members of those that are models."""
    paths: list[Path] = []
    for name, annotation in parameters.items():
        paths += [(name, member) for member in members_of(annotation) or ()] or [(name,)]
    return paths


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def _or(names: Iterable[str]) -> str:
    return " or ".join(names)
