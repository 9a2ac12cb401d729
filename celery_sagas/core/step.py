"""The declaration of a step, and the policies that decide what to do with a message."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, get_origin

from celery_sagas.core.arguments import Arguments, arguments_of, resolve_annotations
from celery_sagas.core.correlation import Rule, choose_rule
from celery_sagas.core.deferred import DEFERRED, checked_defer_for
from celery_sagas.core.functions import (
    check_fits,
    check_handler,
    check_if_missing,
    check_options,
    check_spelling,
    is_synchronous,
    location_of,
    qualified_name_of,
)
from celery_sagas.core.hidden import hides
from celery_sagas.core.names import checked_names
from celery_sagas.core.requests.requests import ANSWERED, UNDONE
from celery_sagas.core.results import Results, results_of
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.sharing import checked_transaction
from celery_sagas.core.status import ALWAYS, IfNot, StatusRule, check_statuses, status_rule, text_of
from celery_sagas.errors import DefinitionError, InvalidState

#: The most messages that may be handled together, so that a transaction stays short.
MOST_IN_BATCH: Final = 500


class IfExists(StrEnum):
    """The policy of a starter for an instance that exists already."""

    HANDLE = "handle"
    IGNORE = "ignore"
    RAISE = "raise"


class IfMissing(StrEnum):
    """The policy of a handler for an instance that does not exist."""

    IGNORE = "ignore"
    RAISE = "raise"
    DEFER = "defer"


class Decision(StrEnum):
    """The decision about a message, once it is known whether its instance exists."""

    BEGIN = "begin"
    CONTINUE = "continue"
    IGNORE = "ignore"
    ALREADY_EXISTS = "already exists"
    NOT_FOUND = "not found"
    DEFER = "defer"
    CALL_IF_MISSING = "call if_missing"


@dataclass
class StepDefinition:
    """A step, as its decorator declares it."""

    saga: SagaDefinition
    name: str
    formerly: tuple[str, ...]
    function: Callable[..., Any]
    starts: bool
    bind: bool
    policy: IfExists | IfMissing
    by: Any
    options: Mapping[str, Any] = field(default_factory=dict)  #: Celery's task options
    if_missing: Callable[..., Any] | None = None  #: registered with ``@step.if_missing``
    is_internal: bool = False  #: the library's own, never named by users
    batch: int | None = None  #: the most messages that are handled together; ``None``: as the setting says
    status: StatusRule = ALWAYS
    defer_for_s: float = 0.0  #: how long a message may be deferred; 0: indefinitely
    transaction: type | str | None = None  #: the kind of transaction that its handler shares with the commit

    @property
    def names(self) -> tuple[str, ...]:
        """The task name, then the former ones."""
        return (self.name, *self.formerly)

    @property
    def location(self) -> tuple[str, str]:
        """Module and qualified name: defining a step again at the same place replaces it."""
        return location_of(self.function)

    @property
    def state_position(self) -> int:
        """The position of the state among the handler's parameters: after the task, with ``bind=True``."""
        return 1 if self.bind else 0

    @property
    def message_position(self) -> int:
        """The position of the message's first parameter: after the state, and after the session of ``transaction=``."""
        return self.state_position + (2 if isinstance(self.transaction, type) else 1)

    def given(self, arguments: Mapping[str, Any], handle: object) -> Mapping[str, Any]:
        """Return the named arguments of the handler: those of the message, and the session of its transaction, if it has one."""
        if not isinstance(self.transaction, type):
            return arguments
        names = list(inspect.signature(self.function).parameters)
        return {names[self.message_position - 1]: handle, **arguments}

    @cached_property
    def arguments(self) -> Arguments:
        """The message's parameters; their annotations, and that of the status, must be resolvable by now."""
        _check_state_annotation(self)
        check_statuses(self.name, self.saga.cls.__name__, self.status, self.saga.statuses)
        return arguments_of(self.name, self.function, leading=self.message_position, known=_known(self.saga))

    @cached_property
    def rule(self) -> Rule:
        """The rule by which its messages find their instance."""
        return choose_rule(self.saga.keys, step=self.name, parameters=self.arguments.annotations, starter=self.starts, by=self.by)

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The parameters whose arguments are hidden, or may have hidden parts."""
        return frozenset(name for name, annotation in self.arguments.annotations.items() if hides(annotation))

    @cached_property
    def results(self) -> Results:
        """What encodes and reads its results, for whoever asks it.

        Raises:
            DefinitionError: There is no JSON for what it returns.
        """
        return results_of(self.name, resolve_annotations(self.name, self.function, _known(self.saga)).get("return", Any))

    def resolve(self) -> None:
        """Run the checks that must wait until annotations can be resolved.

        Raises:
            DefinitionError: The step, or its saga, is declared wrongly.
        """
        _ = self.rule

    @cached_property
    def is_deferred(self) -> bool:
        """Whether its messages are deferred while the instance is in another status."""
        return self.status.if_not is IfNot.DEFER

    def status_of(self, state: Any) -> str | None:
        """Return the status of a state; ``None`` if its saga has none, or no status is set."""
        field = self.saga.status_by
        return text_of(getattr(state, field, None)) if field else None

    def admits(self, state: Any, arguments: Mapping[str, Any]) -> bool:
        """Return whether it runs on an instance, given the message's arguments.

        Raises:
            Exception: Raised by the function that was given as ``when=``.
        """
        rule = self.status
        if rule.condition is not None:
            return bool(rule.condition(state, **arguments))
        return not rule.when or self.status_of(state) in rule.when

    def leave(self, state: Any, key: str, before: str | None) -> None:
        """Bring an instance into the status in which the step leaves it, unless its handler has done so.

        Args:
            state: The state, as the handler has left it.
            key: The instance's, for the error.
            before: Its status before the handler.

        Raises:
            InvalidState: The handler has left it in another status.
        """
        to, status, field = self.status.to, self.status_of(state), self.saga.status_by
        if not to or field is None:
            return
        if len(to) == 1 and status == before:
            setattr(state, field, self.saga.statuses[to[0]])
        elif status not in to:
            problem = f"{self.name} leaves it {status!r}, and is declared with to={to[0] if len(to) == 1 else to!r}"
            raise InvalidState(self.saga.name, key, [(field, problem)])

    def use_if_missing(self, function: Callable[..., Any]) -> None:
        """Run a function when the instance is missing, instead of the policy."""
        if self.starts:
            raise DefinitionError(self.name, "a starter has no if_missing function", "It creates what is missing")
        if self.policy is not IfMissing.IGNORE:
            raise DefinitionError(self.name, f"it has if_missing={self.policy.value!r} already", "Use one of them")
        check_if_missing(self.name, function, self.function, leading=self.message_position)
        self.if_missing = function

    @property
    def missing_function(self) -> Callable[..., Any] | None:
        """The function for a missing instance: its own, or that of its saga, unless its policy decides."""
        is_left_to_saga = not (self.starts or self.is_internal) and self.policy is IfMissing.IGNORE
        return self.if_missing or (self.saga.if_missing if is_left_to_saga else None)

    def decide(self, exists: bool) -> Decision:
        """Decide what to do with a message."""
        if self.starts:
            return _IF_EXISTS[self.policy] if exists else Decision.BEGIN
        if exists:
            return Decision.CONTINUE
        if self.missing_function is not None:
            return Decision.CALL_IF_MISSING
        return _IF_MISSING[self.policy]


#: A handler's decision about a message whose instance is missing, by its policy.
_IF_MISSING: Final[Mapping[str, Decision]] = {
    IfMissing.IGNORE: Decision.IGNORE,
    IfMissing.RAISE: Decision.NOT_FOUND,
    IfMissing.DEFER: Decision.DEFER,
}
#: A starter's decision about a message whose instance exists, by its policy.
_IF_EXISTS: Final[Mapping[str, Decision]] = {
    IfExists.HANDLE: Decision.CONTINUE,
    IfExists.IGNORE: Decision.IGNORE,
    IfExists.RAISE: Decision.ALREADY_EXISTS,
}


def define_step(
    saga: SagaDefinition | None,
    function: Callable[..., Any],
    *,
    starts: bool,
    policy: str,
    by: Any,
    formerly: str | tuple[str, ...] | None,
    batch: int | None = None,
    when: Any = None,
    to: Any = None,
    if_not: Any = None,
    defer_for: Any = None,
    transaction: Any = None,
    options: Mapping[str, Any],
) -> StepDefinition:
    """Check a step's declaration, as far as that needs no annotation, and return its definition."""
    subject = qualified_name_of(function)
    if saga is None:
        raise DefinitionError(subject, "its saga is abstract", "Give the saga class correlate_by=")
    bind = bool(options.get("bind", False))
    check_options(subject, options)
    check_spelling(subject, options, "if_exists", "if_missing", "if_not", "defer_for", "formerly", "when", "to", "transaction")
    shared = checked_transaction(subject, transaction)
    check_handler(subject, function, bind=bind, is_given_session=shared is not None)
    _check_batch(subject, batch, shared)
    decided, status = _policy(subject, starts, policy), status_rule(subject, when, to, if_not)
    _check_condition(subject, function, decided, status, leading=1 + bind + (shared is not None))
    name, *earlier = checked_names(f"{saga.name}.{function.__name__}", formerly, of=subject)
    return StepDefinition(
        saga=saga,
        name=name,
        formerly=tuple(earlier),
        function=function,
        starts=starts,
        bind=bind,
        policy=decided,
        by=by,
        options=options,
        batch=batch,
        status=status,
        transaction=shared,
        defer_for_s=checked_defer_for(
            subject, defer_for, may_be_missing=decided is IfMissing.DEFER, is_deferred=status.if_not is IfNot.DEFER
        ),
    )


def _check_condition(
    subject: str, function: Callable[..., Any], policy: IfExists | IfMissing, status: StatusRule, *, leading: int
) -> None:
    if status.is_conditional and isinstance(policy, IfExists) and policy is not IfExists.HANDLE:
        problem = f"it has when=, and if_exists={policy.value!r}, with which it never runs on an instance"
        raise DefinitionError(subject, problem, "Remove one of them")
    if status.condition is not None:
        check_fits(subject, status.condition, function, leading=leading, what="its when= function", first="state")


def _check_batch(subject: str, batch: object, transaction: object) -> None:
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= MOST_IN_BATCH):
        raise DefinitionError(
            subject, f"batch={batch!r} is no number from 1 to {MOST_IN_BATCH}", "With 1 each message runs alone"
        )
    if isinstance(transaction, str) and batch not in (None, 1):
        problem = f"it has transaction={transaction!r}, and batch={batch}"
        raise DefinitionError(
            subject, problem, "Each of its messages runs alone, since Celery closes Django's connections around it"
        )


def answered_step(saga: SagaDefinition) -> StepDefinition:
    """Return the step for answers to requests that name none: it only removes the request from the pending map."""

    def answered(state: Any, answer: Any = None) -> None:
        """Note that an answer has come."""

    return _internal(saga, ANSWERED, answered)


def undone_step(saga: SagaDefinition) -> StepDefinition:
    """Return the step for the outcomes of undos, which the engine handles."""

    def undone(state: Any, outcome: Any = None) -> None:
        """Note that an undo has an outcome."""

    return _internal(saga, UNDONE, undone)


def deferred_step(saga: SagaDefinition) -> StepDefinition:
    """Return the step for the messages that end the waiting of deferred ones."""

    def deferred(state: Any) -> None:
        """Have the message handled, or become a dead letter."""

    return _internal(saga, DEFERRED, deferred)


def _internal(saga: SagaDefinition, named: str, function: Callable[..., Any]) -> StepDefinition:
    function.__qualname__ = f"{saga.name}.{named}"
    name, *earlier = [f"{each}.{named}" for each in saga.names]
    return StepDefinition(
        saga=saga,
        name=name,
        formerly=tuple(earlier),
        function=function,
        starts=False,
        bind=False,
        policy=IfMissing.IGNORE,
        by=None,
        is_internal=True,
    )


def _policy(subject: str, starts: bool, policy: str) -> IfExists | IfMissing:
    kind: type[IfExists] | type[IfMissing] = IfExists if starts else IfMissing
    try:
        return kind(policy)
    except ValueError as exc:
        option = "if_exists" if starts else "if_missing"
        raise DefinitionError(subject, f"{option}={policy!r} is no policy", f"Known: {', '.join(kind)}") from exc


def _check_state_annotation(step: StepDefinition) -> None:
    parameter = list(inspect.signature(step.function).parameters)[step.state_position]
    annotation = resolve_annotations(step.name, step.function, _known(step.saga)).get(parameter, Any)
    known = isinstance(annotation, type) and get_origin(annotation) is None and annotation is not Any
    if known and not issubclass(step.saga.cls, annotation) and annotation.__qualname__ != step.saga.cls.__qualname__:
        raise DefinitionError(
            step.name,
            f"the parameter {parameter!r} is the state, but is annotated {annotation.__name__}",
            f"def {step.function.__name__}({parameter}: {step.saga.cls.__name__}, …)",
        )


def _known(saga: SagaDefinition) -> dict[str, Any]:
    """Return the names that a step's annotations may use wherever it is defined: its saga may be local to a function."""
    return {saga.cls.__name__: saga.cls}


def use_if_missing(cls: type[Any], function: Callable[..., Any]) -> None:
    """Run a function for all handlers of a saga whose instance is missing, or of the sagas that derive from an abstract class.

    Raises:
        DefinitionError: It does not take a ``Missing`` alone, or the class has another one.
    """
    subject, location = qualified_name_of(function, "an if_missing function"), location_of(function)
    if not is_synchronous(function):
        raise DefinitionError(subject, "an if_missing function is a plain function", "Use def, without yield")
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as exc:
        problem = f"the if_missing function of all steps is given a Missing alone: {exc}"
        raise DefinitionError(subject, problem, f"def {function.__name__}(missing): missing.arguments has the message") from exc
    earlier = vars(cls).get("__if_missing__")
    if earlier is not None and location_of(earlier) != location:
        raise DefinitionError(
            cls.__qualname__, f"it has the if_missing function {'.'.join(location_of(earlier))} already", "Use one"
        )
    cls.__if_missing__ = function
