"""The decorators that make functions the steps of a saga."""

from collections.abc import Callable, Collection
from enum import Enum
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from celery import Task

from celery_sagas.core.correlation import By
from celery_sagas.core.delays import Delay
from celery_sagas.core.registry import registry
from celery_sagas.core.state import State
from celery_sagas.core.step import answered_step, deferred_step, undone_step, use_if_missing
from celery_sagas.engine.outcomes import Missing
from celery_sagas.errors import DefinitionError
from celery_sagas.worker.step import BoundStep, Step, decorator, register

SagaT = TypeVar("SagaT", bound="Declared")
P = ParamSpec("P")
R = TypeVar("R")
SessionT = TypeVar("SessionT")

Names = str | tuple[str, ...]
#: A status, or several.
Statuses = str | Enum | Collection[str] | Collection[Enum]
IfNot = Literal["raise", "ignore", "defer"]


class Declared(State):
    """The part of a saga that declares its steps."""

    if not TYPE_CHECKING:

        @classmethod
        def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
            super().__pydantic_init_subclass__(**keywords)
            if cls.__saga__ is not None:
                registry.add_saga(cls.__saga__)
                register(answered_step(cls.__saga__))
                register(undone_step(cls.__saga__))
                register(deferred_step(cls.__saga__))

    @overload
    @classmethod
    def starts(cls: type[SagaT], function: Callable[Concatenate[SagaT, P], R], /) -> Step[SagaT, P, R]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, SessionT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, SessionT, P], R]], Step[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, SessionT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, SessionT, P], R]], Step[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, P], R]], Step[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def starts(
        cls: type[SagaT],
        *,
        if_exists: Literal["handle", "ignore", "raise"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, P], R]], Step[SagaT, P, R]]: ...
    @classmethod
    def starts(
        cls,
        function: Any = None,
        *,
        if_exists: str = "handle",
        by: By | None = None,
        when: Any = None,
        to: Statuses | None = None,
        if_not: str | None = None,
        defer_for: Delay | None = None,
        transaction: type | str | None = None,
        formerly: Names | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> Any:
        """Make a step that creates the instance if it does not exist.

        Args:
            function: The handler: ``def step(state, …)``; the parameters after the state are the message.
            if_exists: ``"handle"`` runs the handler on the existing instance, ``"ignore"`` does nothing, ``"raise"``
                raises ``SagaAlreadyExists``.
            by: Where in the message the key is, if no argument has the key's name.
            when: In which statuses of an existing instance it runs: one, several, or a function of the state and the message's
                arguments that returns whether it runs. By default in each. See ``status_by``.
            to: The status in which it leaves the instance: one is set for it, unless it has set it; of several it sets one.
            if_not: What becomes of a message in another status: ``"raise"`` raises ``WrongStatus`` (the default), ``"ignore"``
                ignores it, visibly, ``"defer"`` has it wait with the instance, and sends it with the commit that brings the
                instance into a status in which the step runs.
            defer_for: How long a message is deferred at most: a ``timedelta`` or seconds. After that it raises ``WrongStatus``.
            transaction: Has rows that the handler writes committed with the saga, or not at all: ``Session`` or ``Connection`` of
                SQLAlchemy's, of which it is given one after the state; or an alias of Django's, and it uses models as always. It
                must be the database that keeps the sagas.
            formerly: Earlier task names of the step; messages under them are still handled.
            batch: The most messages that a worker handles together, from 1 to 500, in place of the setting ``saga_batch``; with
                1 each message runs alone.
            **options: Celery's task options.

        Raises:
            DefinitionError: The step is declared wrongly.
        """
        moment = {"when": when, "to": to, "if_not": if_not, "defer_for": defer_for}
        named = {"by": by, "transaction": transaction, "formerly": formerly, "batch": batch, "options": options}
        return decorator(cls.__saga__, function, starts=True, policy=if_exists, **moment, **named)

    @overload
    @classmethod
    def handles(cls: type[SagaT], function: Callable[Concatenate[SagaT, P], R], /) -> Step[SagaT, P, R]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, SessionT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, SessionT, P], R]], Step[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, SessionT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: type[SessionT],
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, SessionT, P], R]], Step[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Callable[Concatenate[SagaT, P], object],
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, P], R]], Step[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "defer"] = ...,
        by: By | None = ...,
        when: Statuses | None = ...,
        to: Statuses | None = ...,
        if_not: IfNot | None = ...,
        defer_for: Delay | None = ...,
        transaction: str | None = ...,
        formerly: Names | None = ...,
        batch: int | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, P], R]], Step[SagaT, P, R]]: ...
    @classmethod
    def handles(
        cls,
        function: Any = None,
        *,
        if_missing: str = "ignore",
        by: By | None = None,
        when: Any = None,
        to: Statuses | None = None,
        if_not: str | None = None,
        defer_for: Delay | None = None,
        transaction: type | str | None = None,
        formerly: Names | None = None,
        batch: int | None = None,
        **options: Any,
    ) -> Any:
        """Make a step that runs on an existing instance only.

        Args:
            function: The handler: ``def step(state, …)``; the parameters after the state are the message.
            if_missing: ``"ignore"`` (visibly), ``"raise"`` raises ``SagaNotFound``, ``"defer"`` has the message look again until
                there is an instance, at most ``defer_for``; one that comes after its instance has completed is ignored. See also
                ``@step.if_missing``.
            by: The property that identifies the instance, or where in the message the key is.
            when: In which statuses of an existing instance it runs: one, several, or a function of the state and the message's
                arguments that returns whether it runs. By default in each. See ``status_by``.
            to: The status in which it leaves the instance: one is set for it, unless it has set it; of several it sets one.
            if_not: What becomes of a message in another status: ``"raise"`` raises ``WrongStatus`` (the default), ``"ignore"``
                ignores it, visibly, ``"defer"`` has it wait with the instance, and sends it with the commit that brings the
                instance into a status in which the step runs.
            defer_for: How long a message is deferred at most: a ``timedelta`` or seconds. After that it raises ``SagaNotFound``,
                or ``WrongStatus``.
            transaction: Has rows that the handler writes committed with the saga, or not at all: ``Session`` or ``Connection`` of
                SQLAlchemy's, of which it is given one after the state; or an alias of Django's, and it uses models as always. It
                must be the database that keeps the sagas.
            formerly: Earlier task names of the step; messages under them are still handled.
            batch: The most messages that a worker handles together, from 1 to 500, in place of the setting ``saga_batch``; with
                1 each message runs alone.
            **options: Celery's task options.

        Raises:
            DefinitionError: The step is declared wrongly.
        """
        moment = {"when": when, "to": to, "if_not": if_not, "defer_for": defer_for}
        named = {"by": by, "transaction": transaction, "formerly": formerly, "batch": batch, "options": options}
        return decorator(cls.__saga__, function, starts=False, policy=if_missing, **moment, **named)

    @classmethod
    def if_missing(cls, function: Callable[[Missing], R], /) -> Callable[[Missing], R]:
        """Register a function for a missing instance, for all handlers of the saga, whenever they are defined.

        It runs in place of the policy ``"ignore"``, where a step has no function of its own (``@step.if_missing``). It receives a
        ``Missing`` alone, which has the step's name and the message's arguments. An abstract class's is inherited.

        Args:
            function: ``def function(missing)``.

        Raises:
            DefinitionError: It takes other parameters, or the class has another one.
        """
        if Declared in cls.__bases__:
            raise DefinitionError(cls.__name__, "an if_missing function is one saga's, or an abstract base's", "Derive a class")
        use_if_missing(cls, function)
        return function
