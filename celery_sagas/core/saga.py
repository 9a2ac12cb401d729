"""The declaration of a saga class: its names, its keys and its schema version."""

import re
from collections.abc import Callable, Container, Iterable, KeysView, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.fields import FieldInfo

from celery_sagas.core.correlation import SagaKeys
from celery_sagas.core.delays import Delay, seconds_of
from celery_sagas.core.hidden import hides, marked
from celery_sagas.core.keys import KeyProperty, search_property
from celery_sagas.core.names import as_names, checked_names, snake_case
from celery_sagas.core.status import statuses_in
from celery_sagas.errors import DefinitionError

#: Names that the library may come to use on every saga: neither a field nor any other attribute of it may have them.
RESERVED_FOR_LATER: Final = frozenset({"ask"})
#: Names that a saga's fields must leave to the library.
RESERVED_FIELDS: Final = RESERVED_FOR_LATER | {
    *("starts", "handles", "send", "schedule", "unschedule", "complete", "reply", "gather", "compensate", "cancel"),
    "if_missing",
    *("find_async", "wait_async", "outcome_async"),
    *("find", "all", "wait", "outcome", "upgrade", "saga", "_context"),
}
#: 100 years.
_LONGEST_S: Final = 100 * 365 * 86_400
#: The argument of ``all`` that no field in ``search_by`` may be called.
_ORDER: Final = "oldest_first"
#: How many fields a saga may be listed by: each is an index that its commits keep.
_MOST_SEARCHED: Final = 8
#: The name of a backend in the settings.
BACKEND_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: What of its history a saga may keep: the names of changed fields, their values, its messages, or nothing.
NAMES: Final = "names"
VALUES: Final = "values"
MESSAGES: Final = "messages"
OFF: Final = "off"
#: What is kept for each form of the class keyword.
_HISTORIES: Final[Mapping[frozenset[str], tuple[str, ...]]] = {
    frozenset({OFF}): (),
    frozenset({NAMES}): (NAMES,),
    frozenset({VALUES}): (VALUES,),
    frozenset({MESSAGES}): (MESSAGES, NAMES),
    frozenset({MESSAGES, NAMES}): (MESSAGES, NAMES),
    frozenset({MESSAGES, VALUES}): (MESSAGES, VALUES),
}
#: What is kept without the class keyword.
_BY_DEFAULT: Final = OFF


@dataclass(frozen=True)
class SagaDefinition:
    """A concrete saga, as its class keywords declare it."""

    cls: type[Any]  #: the ``State``
    name: str
    formerly: tuple[str, ...]
    schema_version: int
    correlate_by: tuple[str, ...]
    also_by: tuple[str, ...]
    search_by: tuple[str, ...] = ()  #: the fields by which instances are listed
    #: What the journal keeps of each message: "names" or "values" of the changed fields, and "messages" for a replay.
    history: tuple[str, ...] = ()
    status_by: str | None = None  #: the field that holds the status
    keep_ms: int | None = None  #: for how long the final state of a finished instance can be read
    max_idle_ms: int | None = None  #: after how long without a message an instance for which nothing is due is worth a look
    backend: str | None = None  #: the name, in ``saga_backends``, of the backend that stores the instances

    @property
    def names(self) -> tuple[str, ...]:
        """The stored name, then the former ones."""
        return (self.name, *self.formerly)

    @property
    def location(self) -> tuple[str, str]:
        """Module and qualified name: defining a saga again at the same place replaces it."""
        return self.cls.__module__, self.cls.__qualname__

    @property
    def if_missing(self) -> Callable[..., Any] | None:
        """The function for missing instances of all its handlers: its own, or that of an abstract base."""
        function: Callable[..., Any] | None = self.cls.__if_missing__
        return function

    @cached_property
    def changes(self) -> str:
        """What the journal keeps of the changes of the state: ``"names"``, ``"values"`` or nothing."""
        return next((each for each in self.history if each != MESSAGES), "")

    @cached_property
    def keeps_messages(self) -> bool:
        """Whether the journal keeps the messages that were handled."""
        return MESSAGES in self.history

    @cached_property
    def fields(self) -> KeysView[str]:
        """The names of the stored fields, in their order."""
        fields: KeysView[str] = self.cls.model_fields.keys()
        return fields

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The fields that are hidden, or may have hidden parts."""
        return frozenset(name for name, info in self.cls.model_fields.items() if hides(marked(info)))

    @cached_property
    def statuses(self) -> Mapping[str, Any]:
        """The statuses, as the field holds them, by their texts; the field's annotation must be resolvable by now.

        Raises:
            DefinitionError: The field is annotated with something else.
        """
        if self.status_by is None:
            return {}
        resolve_fields(self.cls)
        if self.status_by in self.hidden:
            problem = f"the status {self.status_by!r} is hidden, and errors and logs name it"
            raise DefinitionError(self.cls.__qualname__, problem, "Remove what hides it, or use another field")
        return statuses_in(self.cls.__qualname__, self.status_by, self.cls.model_fields[self.status_by].annotation)

    @cached_property
    def keys(self) -> SagaKeys:
        """The correlation properties; their annotations must be resolvable by now."""
        resolve_fields(self.cls)
        return SagaKeys(
            saga=self.name,
            key=tuple(self._property(name) for name in self.correlate_by),
            alternate_keys={name: self._property(name) for name in self.also_by},
            formerly=self.formerly,
        )

    @cached_property
    def search_properties(self) -> Mapping[str, KeyProperty]:
        """The fields by which instances are listed; their annotations must be resolvable by now.

        Raises:
            DefinitionError: A field has another type, or is hidden.
        """
        if not self.search_by:
            return {}
        resolve_fields(self.cls)
        if hidden := self.hidden.intersection(self.search_by):
            problem = f"search_by names {', '.join(sorted(hidden))}, which is hidden, and lists show what they were asked for"
            raise DefinitionError(self.cls.__qualname__, problem, "Remove what hides it, or list by another field")
        fields, config = self.cls.model_fields, self.cls.model_config
        return {name: search_property(self.name, name, fields[name], config=config) for name in self.search_by}

    def _property(self, name: str) -> KeyProperty:
        return KeyProperty(self.name, name, self.cls.model_fields[name], config=self.cls.model_config)


def define(
    cls: type[BaseModel],
    *,
    correlate_by: str | tuple[str, ...],
    also_by: tuple[str, ...],
    search_by: tuple[str, ...] = (),
    name: str | None,
    formerly: str | tuple[str, ...] | None,
    schema_version: int,
    history: str | tuple[str, ...] | None = None,
    status_by: str | None = None,
    keep: Delay | None = None,
    max_idle: Delay | None = None,
    backend: str | None = None,
) -> SagaDefinition:
    """Check the class keywords of a concrete saga and return its definition."""
    subject = cls.__qualname__
    key = as_names(correlate_by, of=subject, keyword="correlate_by")
    _check_properties(cls, key, also_by)
    _check_search(subject, search_by, also_by)
    if isinstance(schema_version, bool) or not isinstance(schema_version, int) or not 1 <= schema_version < 2**31:
        raise DefinitionError(subject, f"schema_version={schema_version!r} is not a whole number from 1 to 2,147,483,647")
    today, *earlier = checked_names(snake_case(cls.__name__) if name is None else name, formerly, of=subject)
    return SagaDefinition(
        cls=cls,
        name=today,
        formerly=tuple(earlier),
        schema_version=schema_version,
        correlate_by=key,
        also_by=also_by,
        search_by=search_by,
        history=_history(subject, history),
        status_by=status_by,
        keep_ms=_milliseconds(subject, "keep", keep, "keep a final state"),
        max_idle_ms=_milliseconds(subject, "max_idle", max_idle, "leave an instance alone"),
        backend=backend,
    )


def _history(subject: str, given: object) -> tuple[str, ...]:
    """Check ``history`` and return what the journal keeps; by its default, if it is not given."""
    given = _BY_DEFAULT if given is None else given
    words = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(each, str) for each in words) or (kept := _HISTORIES.get(frozenset(words))) is None:
        known = f'"{NAMES}", "{VALUES}", "{MESSAGES}", "{OFF}", and ("{MESSAGES}", "{VALUES}")'
        raise DefinitionError(subject, f"history={given!r} is unknown", f"Known: {known}")
    return kept


def _milliseconds(subject: str, keyword: str, given: Delay | None, purpose: str) -> int | None:
    """Check the time that a class keyword gives, and return it in milliseconds; ``None`` if none is given."""
    if given is None:
        return None
    try:
        seconds = seconds_of(keyword, given)
    except TypeError as exc:
        raise DefinitionError(subject, str(exc), f"{keyword}=timedelta(days=3)") from exc
    if not 0.001 <= seconds <= _LONGEST_S:
        raise DefinitionError(subject, f"{keyword}={given!r} is no time to {purpose}", "Between a millisecond and 100 years")
    return int(seconds * 1000)


def alternate_keys(
    cls: type[BaseModel], also_by: str | tuple[str, ...] | None, correlate_by: str | tuple[str, ...] | None
) -> tuple[str, ...]:
    """Check ``also_by`` and return the alternate keys of a class: those of its bases that are not its key, then its own."""
    subject = cls.__qualname__
    key = as_names(correlate_by, of=subject, keyword="correlate_by")
    names = (name for base in cls.__bases__ for name in getattr(base, "__also_by__", ()))
    inherited = dict.fromkeys(name for name in names if key != (name,))
    own = as_names(also_by, of=subject, keyword="also_by")
    _check_exist(cls, own)
    return (*inherited, *(name for name in own if name not in inherited))


def search_fields(
    cls: type[BaseModel], search_by: str | tuple[str, ...] | None, correlate_by: str | tuple[str, ...] | None
) -> tuple[str, ...]:
    """Check ``search_by`` and return the fields by which a class is listed: those of its bases, then its own, but its key."""
    subject = cls.__qualname__
    key = as_names(correlate_by, of=subject, keyword="correlate_by")
    inherited = (name for base in cls.__bases__ for name in getattr(base, "__search_by__", ()) if key != (name,))
    own = as_names(search_by, of=subject, keyword="search_by")
    for name in own:
        if name not in cls.model_fields:
            fields = ", ".join(cls.model_fields) or "none"
            raise DefinitionError(subject, f"search_by={name!r} is no field of it", f"Its fields: {fields}")
        if key == (name,):
            raise DefinitionError(subject, f"{name!r} is both its key and in search_by", "find() finds an instance by its key")
    return tuple(dict.fromkeys((*inherited, *own)))


def status_field(cls: type[BaseModel], status_by: object, correlate_by: str | tuple[str, ...] | None) -> str | None:
    """Check ``status_by`` and return the field that holds the status of a class: its own, or that of a base."""
    subject = cls.__qualname__
    if status_by is None:
        status_by = next((field for base in cls.__bases__ if (field := getattr(base, "__status_by__", None))), None)
    if status_by is None:
        return None
    if not isinstance(status_by, str) or status_by not in cls.model_fields:
        fields = ", ".join(cls.model_fields) or "none"
        raise DefinitionError(subject, f"status_by={status_by!r} is no field of it", f"Its fields: {fields}")
    if status_by in as_names(correlate_by, of=subject, keyword="correlate_by"):
        raise DefinitionError(subject, f"{status_by!r} is both its key and its status", "A key never changes: use another field")
    return status_by


def backend_name(cls: type[BaseModel], backend: object) -> str | None:
    """Check ``backend`` and return the name of the backend of a class: its own, or that of a base."""
    if backend is None:
        return next((name for base in cls.__bases__ if (name := getattr(base, "__backend__", None))), None)
    if not isinstance(backend, str) or not BACKEND_NAME.fullmatch(backend):  # it may be a URL with a password
        raise DefinitionError(cls.__qualname__, "backend= is no name of a backend", 'Name one of saga_backends: backend="orders"')
    return backend


def check_names(subject: str, names: Iterable[str], taken: Container[str]) -> None:
    """Refuse names that the library or pydantic uses on every saga, or may come to use."""
    for name in names:
        if name in RESERVED_FIELDS or (name in taken and name != "model_config"):
            raise DefinitionError(subject, f"a field or method may not be named {name!r}", "The name is reserved; choose another")


def check_fields(subject: str, fields: Mapping[str, FieldInfo]) -> None:
    """Refuse fields that are not stored, or stored under another name than their own."""
    for name, info in fields.items():
        if any(alias is not None for alias in (info.alias, info.validation_alias, info.serialization_alias)):
            raise DefinitionError(subject, f"the field {name!r} has an alias", "Stored fields bear their own names: remove it")
        if info.exclude:
            raise DefinitionError(subject, f"the field {name!r} is excluded, so never stored", "Make it a PrivateAttr")


def resolve_fields(cls: type[BaseModel]) -> None:
    """Resolve the forward references in a saga's fields.

    Raises:
        DefinitionError: A name does not exist at run time, or pydantic cannot validate what it stands for.
    """
    if cls.__pydantic_complete__:
        return
    try:
        cls.model_rebuild(raise_errors=True)
    except PydanticUndefinedAnnotation as exc:
        raise unresolved(cls.__qualname__, f"name {exc.name!r} is not defined") from exc
    except PydanticUserError as exc:
        raise unusable(cls.__qualname__, "a field", exc) from exc
    except Exception as exc:  # the evaluation of an annotation may raise anything
        raise unresolved(cls.__qualname__, str(exc)) from exc


def unusable(subject: str, what: str, error: Exception) -> DefinitionError:
    """Return the error for a type that pydantic refuses."""
    return DefinitionError(subject, f"{what} has a type that pydantic cannot validate: {str(error).partition(chr(10))[0]}")


def unresolved(subject: str, problem: str) -> DefinitionError:
    """Return the error for an annotation that cannot be resolved at run time."""
    return DefinitionError(
        subject, f"an annotation cannot be resolved: {problem}", "Import what it names at run time, outside TYPE_CHECKING"
    )


def _check_properties(cls: type[BaseModel], key: tuple[str, ...], alternate_keys: tuple[str, ...]) -> None:
    subject = cls.__qualname__
    if not key:
        raise DefinitionError(subject, "correlate_by is empty", "Name the field that is the key of an instance")
    _check_exist(cls, key)
    doubled = {name for name in (*key, *alternate_keys) if (*key, *alternate_keys).count(name) > 1}
    if doubled:
        raise DefinitionError(subject, f"{', '.join(sorted(doubled))} stands twice in correlate_by and also_by")


def _check_search(subject: str, search_by: tuple[str, ...], also_by: tuple[str, ...]) -> None:
    if doubled := sorted(set(search_by).intersection(also_by)):
        raise DefinitionError(subject, f"{', '.join(doubled)} stands in also_by and search_by", "Remove it from search_by")
    if _ORDER in search_by:
        raise DefinitionError(subject, f"search_by names {_ORDER}, which is an argument of all()", "Rename the field")
    if len(search_by) > _MOST_SEARCHED:
        raise DefinitionError(subject, f"search_by has {len(search_by)} fields, and {_MOST_SEARCHED} are allowed")


def _check_exist(cls: type[BaseModel], names: tuple[str, ...]) -> None:
    for name in names:
        if name not in cls.model_fields:
            fields = ", ".join(cls.model_fields) or "none"
            raise DefinitionError(cls.__qualname__, f"it has no field {name!r} to correlate by", f"Its fields: {fields}")
