"""The result of the step decorators: a proxy for the step's task in the current app, as ``shared_task`` returns one."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from celery import Celery, Task
from celery.local import Proxy

from celery_sagas.core.registry import registry
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.core.step import StepDefinition, define_step
from celery_sagas.engine.outcomes import Missing
from celery_sagas.errors import DefinitionError
from celery_sagas.worker.celery_internals import finalised_apps, on_finalise_last
from celery_sagas.worker.collecting import handler_of
from celery_sagas.worker.proxy import TaskProxy
from celery_sagas.worker.tasks import StepTask, install

if TYPE_CHECKING:
    from celery.canvas import Signature
    from celery.result import AsyncResult

StateT = TypeVar("StateT")
P = ParamSpec("P")
R = TypeVar("R")
R2 = TypeVar("R2")


if TYPE_CHECKING:
    R_co = TypeVar("R_co", covariant=True)

    class StepSignature(Signature[Any], Generic[R_co]):
        """A signature of a step that returns an ``R_co``, which is what ``ask`` returns.

        To ``send`` its answer is of any type: ``reply`` answers a step that creates an instance.
        """

        def set(self, *args: Any, **options: Any) -> Self:
            """Set options, such as the queue, and return it."""


class Step(TaskProxy, Generic[StateT, P, R]):
    """A step of a saga: a Celery task whose message has the handler's parameters, without the state."""

    if TYPE_CHECKING:
        name: str

        def __init__(self, definition: StepDefinition) -> None: ...

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
            """Handle the message at once, under a fresh id. Refused inside a step."""

        def delay(self, *args: P.args, **kwargs: P.kwargs) -> "AsyncResult[R]":
            """Publish a message."""

        def apply_async(
            self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
        ) -> "AsyncResult[R]":
            """Publish a message with Celery's options (``countdown``, ``queue``, ``priority`` …)."""

        def s(self, *args: Any, **kwargs: Any) -> "StepSignature[R]":
            """Return a signature; it may be partial: an answer is put before its arguments."""

        def si(self, *args: P.args, **kwargs: P.kwargs) -> "StepSignature[R]":
            """Return an immutable signature: no answer is added to its arguments."""

        def signature(self, args: Any = None, *positional: Any, **options: Any) -> "Signature[Any]":
            """Return a signature with Celery's options."""

    else:
        __slots__ = ()
        _stand_in = StepTask

    @property
    def handler(self) -> Callable[Concatenate[StateT, P], R]:
        """The plain function, to be called with a state of your own, for example in a test.

        None of its messages leaves the process: ``celery_sagas.testing.collected(state)`` returns them. Only a task that
        it calls with ``delay`` is published as usual.
        """
        return handler_of(object.__getattribute__(self, "_definition"))

    def if_missing(self, function: Callable[Concatenate[Missing, P], R2]) -> Callable[Concatenate[Missing, P], R2]:
        """Register a function for a missing instance: it receives a ``Missing``, then the message's arguments."""
        object.__getattribute__(self, "_definition").use_if_missing(function)
        return function

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of the Celery task."""


if TYPE_CHECKING:

    class BoundStep(Step[StateT, P, R]):
        """A step whose handler receives the task first."""

        @property
        def handler(self) -> Callable[Concatenate[Any, StateT, P], R]:  # type: ignore[override]
            """The plain function, to be called with a task and a state of your own."""

else:
    BoundStep = Step


def decorator(saga: SagaDefinition | None, function: Any, **declared: Any) -> Any:
    """Return what decorates functions as steps; or the step, if the function is given.

    Args:
        saga: Its saga; ``None`` for an abstract one.
        function: The function, if it is known.
        **declared: What the decorator was given.
    """

    def decorate(handler: Callable[..., Any]) -> Step[Any, Any, Any]:
        if issubclass(type(handler), Task | Proxy):  # isinstance() would make the proxy look up its task
            raise DefinitionError(
                "the step", "it is a task already", "Decorate the plain function; every task option may be given to the step"
            )
        return register(define_step(saga, handler, **declared))

    return decorate if function is None else decorate(function)


def register(definition: StepDefinition) -> Step[Any, Any, Any]:
    """Register a step with every present and future app, without access to those that are not finalised yet."""
    registry.add_step(definition)
    for app in finalised_apps():
        install(app, definition)
    return Step(definition)


def install_all(app: Celery) -> None:
    """Check the annotations of every step and register its tasks with an app that is being finalised."""
    for definition in list(registry.steps.values()):
        definition.resolve()
        install(app, definition)


on_finalise_last(install_all)
