"""A step as a Celery task: what its ``run`` does, and how its arguments are encoded."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import uuid4

from celery import Celery, Task
from celery.canvas import Signature
from celery.exceptions import Reject

from celery_sagas import signals
from celery_sagas.core.steps import IfMissing, StepDefinition
from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.engine.run import Delivery
from celery_sagas.engine.session import Session, close_session, current_session, open_session
from celery_sagas.engine.unit_of_work import handle
from celery_sagas.errors import (
    ConfigurationError,
    DefinitionError,
    KeyTaken,
    MessageError,
    MisuseError,
    Retry,
    SagaNotFound,
    StoreError,
    UnreadableState,
)
from celery_sagas.worker.headers import read_causation
from celery_sagas.worker.internals import add_task, registered, unregister
from celery_sagas.worker.later import put_off, retry_missing
from celery_sagas.worker.publisher import ConfirmedPublisher
from celery_sagas.worker.runtime import Runtime, runtime_of

logger = logging.getLogger("celery_sagas")

if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task  # generic for type checkers only, before Celery 5.6

#: Errors that the same message meets again: ``autoretry_for`` does not retry them.
HOPELESS = (MessageError, DefinitionError, ConfigurationError, MisuseError, UnreadableState, KeyTaken)


class StepTask(_Task):
    """The base of every step's task, in front of the app's own ``Task``, whose names it leaves alone."""

    abstract = True
    saga_step: ClassVar[StepDefinition]

    # Nothing is acknowledged unless it is committed: not before the run, not when the worker is lost or out of time.
    acks_late = True
    reject_on_worker_lost = True
    acks_on_timeout = False  # Celery 5.7; before it, one flag covers time limits and failures
    ignore_result = True

    def apply_async(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Any:
        """Publish a message, its arguments encoded by their annotations."""
        args, kwargs = self.saga_step.arguments.encode(args or (), kwargs or {})
        return super().apply_async(args, kwargs, *positional, **options)

    def signature(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Signature[Any]:
        """Return a signature, its arguments encoded; those of a partial one, to which an answer may be added, by their types."""
        arguments = self.saga_step.arguments
        encode = arguments.encode if options.get("immutable") else arguments.encode_partial
        encoded, named = encode(args or (), kwargs or {})
        return super().signature(tuple(encoded), named, *positional, **options)

    def s(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return a signature, which may be partial."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return an immutable signature: no answer is added to its arguments."""
        return self.signature(args, kwargs, immutable=True)


def handle_message(task: StepTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Handle the message that a step's task runs for now, or that a direct call makes."""
    step, request, runtime = task.saga_step, task.request, runtime_of(task.app)
    if request.called_directly or request.is_eager:
        args, kwargs = step.arguments.encode(args, kwargs)  # what came through a broker is encoded
    with _session(step, request) as session:
        delivery = Delivery(session.message_id, step.arguments.bind(args, kwargs), session, _caller(task, step))
        try:
            outcome = handle(runtime.services, step, delivery)
        except (StoreError, SagaNotFound) as exc:
            _later(task, request, runtime, exc)
            raise
    _tell(task, outcome)
    return outcome.result


@contextmanager
def _session(step: StepDefinition, request: Any) -> Iterator[Session]:
    """Return the session that ``task_prerun`` opened, or open one for a direct call."""
    session = current_session()
    if not request.called_directly and session is not None and session.message_id == str(request.id):
        session.refuse_inline(step.name)
        yield session
        return
    opened = open_session(str(request.id or uuid4()), read_causation(request))
    try:
        opened.refuse_inline(step.name)
        yield opened
    finally:
        close_session(opened)


def _caller(task: StepTask, step: StepDefinition) -> Callable[..., Any]:
    """Return what calls a handler, which gets the task first if it is bound; an ``if_missing`` function never does."""

    def call(function: Any, first: Any, /, **arguments: Any) -> Any:
        if step.bind and function is step.function:
            return function(task, first, **arguments)
        return function(first, **arguments)

    return call


def _later(task: StepTask, request: Any, runtime: Runtime, exc: StoreError | SagaNotFound) -> None:
    """Publish the message again if that can help, and if there is a message; else return."""
    publisher = runtime.publisher
    if request.called_directly or request.is_eager or not isinstance(publisher, ConfirmedPublisher):
        return
    if isinstance(exc, SagaNotFound):
        wanted = task.saga_step.policy is IfMissing.RETRY and exc.saga == task.saga_step.saga.name
        if wanted and (task.max_retries is None or (request.retries or 0) < task.max_retries):
            retry_missing(task, publisher, exc)
    elif exc.retry in (Retry.AT_ONCE, Retry.LATER):
        put_off(task, publisher, exc)


def install(app: Celery, step: StepDefinition) -> None:
    """Register a step's tasks with a finalised app, under its name and its former ones, in the place of its earlier self."""
    for name in step.names:
        existing = registered(app, name)
        if existing is not None and not isinstance(existing, StepTask):
            raise DefinitionError(name, "another task of the app has this name", "rename the step or the task")
        unregister(app, name)
        options = dict(step.options)
        base: Any = options.pop("base", None) or app.Task
        not_retried = options.get("dont_autoretry_for", getattr(base, "dont_autoretry_for", ()))
        options["dont_autoretry_for"] = (*not_retried, *HOPELESS, Reject)  # Celery's retry would lose what the broker keeps
        options.update(bind=True, name=name, base=_base(base), saga_step=step)
        add_task(app, _run_of(step), **options)


def _base(base: "type[Task[Any, Any]]") -> "type[Task[Any, Any]]":
    return type("StepTask", (StepTask, base), {"abstract": True, "__module__": __name__})


def _run_of(step: StepDefinition) -> Any:
    """Return the function that Celery takes for the step: the message's parameters, without the state."""

    def run(self: StepTask, /, *args: Any, **kwargs: Any) -> Any:
        return handle_message(self, args, kwargs)

    functools.update_wrapper(run, step.function)
    del run.__wrapped__  # type: ignore[attr-defined]
    parameters = list(inspect.signature(step.function).parameters.values())[step.state_position + 1 :]
    task = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    run.__signature__ = inspect.Signature([task, *parameters])  # type: ignore[attr-defined]
    return run


def _tell(task: StepTask, outcome: Outcome) -> None:
    """Make visible what came of the message: in the log, and by signals."""
    level = logging.INFO if outcome.kind in (Kind.IGNORED, Kind.MISSING, Kind.DUPLICATE) else logging.DEBUG
    logger.log(
        level,
        "%s[%s] %s: %s %r%s",
        outcome.step,
        outcome.message_id,
        outcome.kind,
        outcome.saga,
        outcome.key,
        f" ({outcome.reason})" if outcome.reason else "",
    )
    if outcome.is_new:
        signals.saga_started.send(sender=task, outcome=outcome)
    if outcome.kind is Kind.COMPLETED:
        signals.saga_completed.send(sender=task, outcome=outcome)
    if outcome.kind is Kind.IGNORED:
        signals.step_ignored.send(sender=task, outcome=outcome)
