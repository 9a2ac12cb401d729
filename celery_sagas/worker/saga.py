"""``Saga``: the class that users derive from. Its fields are the state, its decorators make the steps."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

from celery import Task
from celery.local import Proxy

from celery_sagas.core.correlation import By
from celery_sagas.core.definition import SagaDefinition
from celery_sagas.core.registry import registry
from celery_sagas.core.state import State
from celery_sagas.core.steps import define_step
from celery_sagas.engine.query import copy_of, outcome_of
from celery_sagas.errors import DefinitionError
from celery_sagas.stores.records import Entry
from celery_sagas.worker.internals import current_app
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.step import BoundStep, Step, register
from celery_sagas.worker.timeouts import Delay, due_time, schedule, waiting

if TYPE_CHECKING:
    from celery.canvas import Signature

SagaT = TypeVar("SagaT", bound="Saga")
P = ParamSpec("P")
R = TypeVar("R")

Names = str | tuple[str, ...]


class Saga(State):
    """The state of a long-running, correlated process, kept between the messages of its steps.

    ``class Order(Saga, correlate_by="order_id", also_by="tracking")``. The class keywords:

    * ``correlate_by``: the field that is the key of an instance, never null; several make one composite key. Without it the
      class is abstract: fields and methods for others to inherit, no steps.
    * ``also_by``: alternate keys, each unique among live instances; a null one is not indexed.
    * ``name``: the stored name (default: the class name in snake case); ``formerly``: names that it had earlier.
    * ``schema_version``: of the state (default 1); raise it with an ``upgrade`` of your own.
    """

    if not TYPE_CHECKING:

        @classmethod
        def __pydantic_init_subclass__(cls, **keywords: Any) -> None:
            super().__pydantic_init_subclass__(**keywords)
            if cls.__saga__ is not None:
                registry.add_saga(cls.__saga__)

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
        formerly: Names | None = ...,
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
        formerly: Names | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, P], R]], Step[SagaT, P, R]]: ...
    @classmethod
    def starts(
        cls,
        function: Any = None,
        *,
        if_exists: str = "handle",
        by: By | None = None,
        formerly: Names | None = None,
        **options: Any,
    ) -> Any:
        """Make a step that creates the instance if there is none (NS-03).

        Args:
            function: The handler: ``def step(state, …)``; what follows the state is the message.
            if_exists: ``"handle"`` runs the handler on the instance that is there, ``"ignore"`` does nothing, ``"raise"``
                raises ``SagaAlreadyExists``.
            by: Where in the message the key stands, if its arguments do not bear the key's name.
            formerly: Earlier task names of the step; messages under them are still handled.
            **options: Celery's task options.

        Raises:
            DefinitionError: The step is declared wrongly.
        """
        return _decorator(cls.__saga__, function, starts=True, policy=if_exists, by=by, formerly=formerly, options=options)

    @overload
    @classmethod
    def handles(cls: type[SagaT], function: Callable[Concatenate[SagaT, P], R], /) -> Step[SagaT, P, R]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "retry"] = ...,
        by: By | None = ...,
        formerly: Names | None = ...,
        bind: Literal[True],
        **options: Any,
    ) -> Callable[[Callable[Concatenate["Task[Any, Any]", SagaT, P], R]], BoundStep[SagaT, P, R]]: ...
    @overload
    @classmethod
    def handles(
        cls: type[SagaT],
        *,
        if_missing: Literal["ignore", "raise", "retry"] = ...,
        by: By | None = ...,
        formerly: Names | None = ...,
        **options: Any,
    ) -> Callable[[Callable[Concatenate[SagaT, P], R]], Step[SagaT, P, R]]: ...
    @classmethod
    def handles(
        cls,
        function: Any = None,
        *,
        if_missing: str = "ignore",
        by: By | None = None,
        formerly: Names | None = None,
        **options: Any,
    ) -> Any:
        """Make a step that runs on an existing instance only.

        Args:
            function: The handler: ``def step(state, …)``; what follows the state is the message.
            if_missing: ``"ignore"`` (visibly), ``"raise"`` raises ``SagaNotFound``, ``"retry"`` handles the message again
                after ``default_retry_delay``, at most ``max_retries`` times. See also ``@step.if_missing``.
            by: What the message is found by, or where in it the key stands.
            formerly: Earlier task names of the step; messages under them are still handled.
            **options: Celery's task options.

        Raises:
            DefinitionError: The step is declared wrongly.
        """
        return _decorator(cls.__saga__, function, starts=False, policy=if_missing, by=by, formerly=formerly, options=options)

    def send(self, signature: "Signature[Any]", *, after: Delay | None = None) -> str:
        """Send a message: stored with this step's commit, published after it, or not at all.

        What is sent is gone: it survives the end of the instance. ``schedule`` is for what is to end with it.

        Args:
            signature: Of one task, or a chain. It is encoded now: later changes of its arguments are not seen. A ``countdown``
                or ``eta`` in its options does what ``after`` does.
            after: How long it waits in the backend, not in the broker; a ``timedelta`` or seconds.

        Returns:
            The message's id; for a chain, its last task's. The same message handled again sends under the same id.

        Raises:
            TypeError: It is a group or a chord, or no signature.
            InvalidMessage: It cannot be encoded as JSON, or is larger than ``saga_max_state_bytes``.
            MisuseError: No step runs on this object.
        """
        due_at = None if after is None else waiting(due_time(after))
        return self._in_step("send").require_sending("send").send(signature, due_at)

    def schedule(
        self,
        target: "Step[Self, ..., Any] | Signature[Any] | str",
        *,
        after: Delay | None = None,
        at: datetime | None = None,
        name: str | None = None,
    ) -> str:
        """Schedule a timeout: a message to this very instance, which ends with it (PM-25, WV-14).

        It is handled by this instance or by none: not if it was withdrawn or replaced in the meantime, wherever it waited, and
        not by a later instance with the same key (NS-09). It waits in the backend, so that it may be due in a year.

        Args:
            target: A step of this saga, a signature of one (``remind.s("again")``), or its name.
            after: How long from now: a ``timedelta`` or seconds.
            at: When: an aware time, in the place of ``after``.
            name: A timeout with a name takes the place of the one that has it; without one, each call adds a timeout.

        Returns:
            Its id, by which ``unschedule`` knows it if it has no name.

        Raises:
            TypeError: Neither or both of ``after`` and ``at`` are given, or the target is of another type.
            ValueError: The time is naive, or beyond all dates.
            InvalidMessage: The arguments do not fit the step.
            MisuseError: The target is no step of this saga, or no step runs on this object.
        """
        due_at = due_time(after, at)
        return schedule(self._in_step("schedule"), _concrete(type(self)), target, due_at, name)

    def unschedule(self, name: str) -> None:
        """Withdraw the timeout that has a name, or this id; if there is none, nothing happens.

        Raises:
            MisuseError: No step runs on this object.
        """
        self._in_step("unschedule").timeouts.withdraw(name)

    @classmethod
    def find(cls, key: object = None, /, **by: object) -> Self | None:
        """Return a fresh, read-only copy of an instance, or ``None`` (PM-02, PM-04).

        Args:
            key: The correlation key; a tuple of all parts for a composite one.
            **by: An alternate key, ``tracking="1Z…"``, or the parts of the correlation key.

        Raises:
            DefinitionError: It is looked up by a property that is no key of the saga.
            CorrelationError: The value is null or is no value of the key's type.
            StoreError: The store is unavailable, or the instance cannot be read.
        """
        saga = _concrete(cls)
        found: Self | None = copy_of(runtime_of(current_app()).backend, saga, key, by)
        return found

    @classmethod
    def outcome(cls, key: object = None, /, **by: object) -> Entry | None:
        """Return the last journal entry of the newest finished instance with this key, while it is remembered.

        Args:
            key: The correlation key; a tuple of all parts for a composite one.
            **by: The parts of the correlation key by name.

        Raises:
            DefinitionError: The properties are not those of the correlation key.
            CorrelationError: The value is null or is no value of the key's type.
            StoreUnavailable: The store cannot be reached.
        """
        saga = _concrete(cls)
        return outcome_of(runtime_of(current_app()).backend, saga, key, by)


def _concrete(cls: type[State]) -> SagaDefinition:
    if cls.__saga__ is None:
        raise DefinitionError(cls.__qualname__, "the saga is abstract", "Give it correlate_by=")
    return cls.__saga__


def _decorator(saga: SagaDefinition | None, function: Any, **declared: Any) -> Any:
    def decorate(handler: Callable[..., Any]) -> Step[Any, Any, Any]:
        if issubclass(type(handler), Task | Proxy):  # isinstance() would make the proxy look up its task
            raise DefinitionError(
                "the step", "it is a task already", "Decorate the plain function; every task option may be given to the step"
            )
        return register(define_step(saga, handler, **declared))

    return decorate if function is None else decorate(function)
