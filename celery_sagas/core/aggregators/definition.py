"""The declaration of an aggregator."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from inspect import Parameter
from typing import Any, Final, get_args, get_origin

from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.items import GroupBy, ItemType
from celery_sagas.core.aggregators.rules import LARGEST_SIZE, Rules
from celery_sagas.core.arguments import resolve_annotations
from celery_sagas.core.functions import is_synchronous, qualified_name_of
from celery_sagas.core.names import checked_name
from celery_sagas.core.sharing import checked_transaction
from celery_sagas.errors import DefinitionError

#: Ends the name of the task that flushes a group.
FLUSH: Final = ".flush"
#: The value of ``dedupe_for`` that stands for the journal's retention.
AS_JOURNAL: Final = "journal"
_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)

Duration = float | int | timedelta


@dataclass
class AggregatorDefinition:
    """An aggregator, as its decorator declares it. Times are milliseconds; 0 means that the option is not set."""

    name: str
    function: Callable[..., Any]
    bind: bool
    size: int
    within_ms: int
    idle_ms: int
    group_by: GroupBy | None
    dedupe_ms: int | None  #: ``None``: as long as the journal is kept
    max_buffered: int
    correlate_by: str | None = None  #: the path of the items' correlation id
    transaction: type | str | None = None  #: the kind of transaction that its function shares with the removal of the batch
    options: Mapping[str, Any] = field(default_factory=dict)  #: Celery's task options

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its tasks: the one that buffers an item, and the one that flushes a group."""
        return (self.name, self.flush_name)

    @property
    def flush_name(self) -> str:
        """The name of the task that flushes a group."""
        return self.name + FLUSH

    @property
    def location(self) -> tuple[str, str]:
        """Module and qualified name: defining an aggregator again at the same place replaces it."""
        return self.function.__module__, self.function.__qualname__

    @cached_property
    def items(self) -> ItemType:
        """The type of its items; annotations must be resolvable by now."""
        return ItemType(self.name, _item_annotation(self), self.group_by, self.correlate_by)

    def resolve(self) -> None:
        """Run the checks that must wait until annotations can be resolved.

        Raises:
            DefinitionError: It is declared wrongly.
        """
        self.items.check()

    def rules(self, *, retention_ms: int, max_attempts: int, lease_ms: int) -> Rules:
        """Return the rules that its store applies.

        Args:
            retention_ms: How long the journal is kept.
            max_attempts: The setting ``saga_max_deliveries``.
            lease_ms: The setting ``saga_lease_ttl``.
        """
        return Rules(
            name=self.name,
            size=self.size,
            within_ms=self.within_ms,
            idle_ms=self.idle_ms,
            max_buffered=self.max_buffered,
            remember_ms=retention_ms if self.dedupe_ms is None else self.dedupe_ms,
            max_attempts=max_attempts,
            lease_ms=lease_ms,
        )


def define_aggregator(
    function: Callable[..., Any],
    *,
    name: str | None,
    size: int | None,
    within: Duration | None,
    idle: Duration | None,
    group_by: Any,
    dedupe_for: Duration | str | None,
    max_buffered: int | None,
    correlate_by: Any,
    transaction: Any = None,
    options: Mapping[str, Any],
) -> AggregatorDefinition:
    """Check an aggregator's declaration, as far as that needs no annotation, and return its definition.

    Raises:
        DefinitionError: It is declared wrongly.
    """
    subject = qualified_name_of(function, "an aggregator")
    bind = bool(options.get("bind", False))
    shared = checked_transaction(subject, transaction)
    _check_function(subject, function, bind=bind, is_given_session=isinstance(shared, type))
    _check_options(subject, options)
    if size is None and within is None and idle is None:
        raise DefinitionError(subject, "nothing would ever flush it", "Give it size=, within= or idle=")
    limit = _count(subject, "max_buffered", max_buffered)
    items = _count(subject, "size", size)
    if limit and items > limit:
        raise DefinitionError(subject, f"size={items} is more than max_buffered={limit}", "It would never be reached")
    return AggregatorDefinition(
        name=checked_name(name or f"{function.__module__}.{function.__name__}", of=subject),
        function=function,
        bind=bind,
        size=_bounded(subject, items),
        within_ms=_milliseconds(subject, "within", within),
        idle_ms=_milliseconds(subject, "idle", idle),
        group_by=_checked_group_by(subject, group_by),
        dedupe_ms=None if dedupe_for == AS_JOURNAL else _milliseconds(subject, "dedupe_for", dedupe_for),
        max_buffered=limit,
        correlate_by=_checked_correlate_by(subject, correlate_by),
        transaction=shared,
        options=options,
    )


def _item_annotation(definition: AggregatorDefinition) -> Any:
    """Return the type of the items, from the annotation ``Batch[…]``; ``Any`` if that is missing or names no type."""
    parameter = list(inspect.signature(definition.function).parameters)[1 if definition.bind else 0]
    annotation = resolve_annotations(definition.name, definition.function).get(parameter, Any)
    members = get_args(annotation)
    if annotation in (Any, Batch):
        return Any
    if get_origin(annotation) is Batch:
        return Any if isinstance(members[0], typing.TypeVar) else members[0]
    raise DefinitionError(
        definition.name,
        f"the parameter {parameter!r} is the batch, but is annotated {annotation}",
        f"def {definition.function.__name__}({parameter}: Batch[Reading])",
    )


def _check_function(subject: str, function: Callable[..., Any], *, bind: bool, is_given_session: bool) -> None:
    if not is_synchronous(function):
        raise DefinitionError(subject, "an aggregator is a plain function", "Celery tasks are synchronous: def, without yield")
    parameters = list(inspect.signature(function).parameters.values())
    first = [*(["the task"] if bind else []), "a batch" if bind else "one batch", *(["a session"] if is_given_session else [])]
    leading = len(first)
    fits = len(parameters) >= leading and all(parameter.kind in _POSITIONAL for parameter in parameters[:leading])
    if not fits or any(parameter.default is parameter.empty for parameter in parameters[leading:] if not _is_variadic(parameter)):
        shown = f"{'self, ' if bind else ''}batch: Batch[Reading]{', session: Session' if is_given_session else ''}"
        raise DefinitionError(subject, f"its function does not take {' and '.join(first)}", f"def {function.__name__}({shown})")


def _is_variadic(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _check_options(subject: str, options: Mapping[str, Any]) -> None:
    if options.get("pydantic"):
        raise DefinitionError(subject, "pydantic= cannot be set on an aggregator", "Its items are validated anyway: remove it")
    if options.get("serializer", "json") != "json":
        raise DefinitionError(subject, f"serializer={options['serializer']!r} cannot be set on an aggregator", "Items are JSON")


def _count(subject: str, keyword: str, value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DefinitionError(subject, f"{keyword}={value!r} is no positive whole number")
    return value


def _bounded(subject: str, size: int) -> int:
    if size > LARGEST_SIZE:
        raise DefinitionError(subject, f"size={size} is more than one flush can have", f"At most {LARGEST_SIZE:,}")
    return size


def _milliseconds(subject: str, keyword: str, value: object) -> int:
    if value is None:
        return 0
    seconds: Any = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST_S:
        raise DefinitionError(subject, f"{keyword}={value!r} is no time", "Give a timedelta or seconds, more than zero")
    return max(1, int(seconds * 1000 + 0.5))


def _checked_group_by(subject: str, group_by: Any) -> GroupBy | None:
    fields = (group_by,) if isinstance(group_by, str) else group_by
    are_paths = isinstance(fields, tuple) and fields and all(map(_is_path, fields))
    if group_by is None or callable(group_by) or are_paths:
        return typing.cast("GroupBy | None", group_by)
    raise DefinitionError(subject, f"group_by={group_by!r} names no field", "Give a field, a tuple of fields or a function")


def _checked_correlate_by(subject: str, correlate_by: Any) -> str | None:
    if correlate_by is None or _is_path(correlate_by):
        return typing.cast("str | None", correlate_by)
    raise DefinitionError(subject, f"correlate_by={correlate_by!r} names no field", 'Give a field or a path, "order.id"')


def _is_path(value: object) -> bool:
    return isinstance(value, str) and all(value.split("."))


#: A hundred years: a longer time is surely a mistake.
_LONGEST_S: Final = 100 * 365 * 86_400
