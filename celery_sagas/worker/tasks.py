"""Steps as Celery tasks: their ``run``, and the encoding of their arguments."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from celery import Celery
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject

from celery_sagas.core.step import IfMissing, StepDefinition
from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_id_of
from celery_sagas.engine.handling import handle
from celery_sagas.engine.outcomes import Kind
from celery_sagas.engine.session import Session, refuse_inline
from celery_sagas.engine.tracing import MessageTrace
from celery_sagas.errors import (
    ConfigurationError,
    DefinitionError,
    KeyTaken,
    MessageError,
    MisuseError,
    SagaNotFound,
    StoreError,
    TooManyDeferred,
    UnreadableState,
)
from celery_sagas.worker import tracing
from celery_sagas.worker.deliveries import conclude, delivery_of
from celery_sagas.worker.durable import DurableTask, add_durable_task, bearing, free_name
from celery_sagas.worker.failures.deferral import defer_missing, keep_out
from celery_sagas.worker.failures.notifications import notify_requester
from celery_sagas.worker.failures.redelivery import redeliver_if_it_helps
from celery_sagas.worker.headers import (
    ADDRESS,
    MESSAGE_ID,
    STEP,
    check_message_id,
)
from celery_sagas.worker.runtime import refuse_stand_in, runtime_of
from celery_sagas.worker.sessions import current_session, direct_session, mark_over, new_message_id, open_sessions, session_of


class StepTask(DurableTask):
    """The base of every step's task, in front of the app's own ``Task``, whose names it does not override."""

    abstract = True
    saga_step: ClassVar[StepDefinition]
    #: Errors that recur with the same message.
    never_retried = (Reject, MessageError, DefinitionError, ConfigurationError, MisuseError, UnreadableState, KeyTaken)

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, *positional: Any, **options: Any
    ) -> Any:
        """Publish a message, its arguments encoded by their annotations.

        A redelivered task publishes it under the same id, so that its step drops the repeat.
        """
        args, kwargs = self.saga_encode(args, kwargs, options)
        session = current_session()
        if task_id is None and session is not None and session.sending is None:
            task_id = new_message_id(session, self.name, [args, kwargs])
        return super().apply_async(args, kwargs, task_id, *positional, **options)

    def saga_encode(self, args: Any, kwargs: Any, options: dict[str, Any]) -> tuple[Any, Any]:
        """Return the arguments of a message, encoded by their annotations, and mark it as a step's in its options."""
        refuse_stand_in(self.app)
        headers = options["headers"] = {STEP: True, **(options.get("headers") or {})}
        if ADDRESS not in headers:  # an answer is validated where it is handled, not where it is given
            args, kwargs = self.saga_step.arguments.encode(args or (), kwargs or {})
        check_message_id(self.name, headers.get(MESSAGE_ID))
        return args, kwargs

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        """Have a worker handle messages together that it has received together."""
        # imports celery.worker, which a process that only sends does without
        from celery_sagas.worker.batches.steps import consumer_for

        return super().start_strategy(app, consumer_for(self, consumer), **options)

    def signature(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Signature[Any]:
        """Return a signature, its arguments encoded; those of a partial one, to which an answer may be added, by their types."""
        arguments = self.saga_step.arguments
        encode = arguments.encode if options.get("immutable") else arguments.encode_partial
        encoded, named = encode(args or (), kwargs or {})
        return bearing(super().signature(tuple(encoded), named, *positional, **options), {STEP: True})

    def s(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return a signature, which may be partial."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return an immutable signature: no answer is added to its arguments."""
        return self.signature(args, kwargs, immutable=True)


def handle_message(task: StepTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Handle the message of a step's running task, or of a direct call."""
    step, request = task.saga_step, task.request
    _refuse_inline(step, request)
    if request.called_directly or request.is_eager:
        args, kwargs = step.arguments.encode(args, kwargs)  # arguments that came through a broker are encoded
    if not request.called_directly:
        result = _handle(task, request, session_of(request), step.arguments.bind(args, kwargs))
        mark_over(request)
        return result
    with direct_session(request) as session:
        return _handle(task, request, session, step.arguments.bind(args, kwargs))


def _refuse_inline(step: StepDefinition, request: Any) -> None:
    try:
        refuse_inline(step.name, open_sessions())
    except MisuseError as exc:
        if request.called_directly or request.is_eager:
            raise
        # during its shutdown, a worker runs prefetched messages inside the handler that it interrupts
        raise Reject(repr(exc), requeue=True) from exc


def _handle(task: StepTask, request: Any, session: Session, bound: Mapping[str, Any]) -> Any:
    if (tracer := tracing.tracer) is None:
        return _handle_traced(task, request, session, bound, None)
    with tracer.message(task, request, session.message_id) as trace:
        return _handle_traced(task, request, session, bound, trace)


def _handle_traced(task: StepTask, request: Any, session: Session, bound: Mapping[str, Any], trace: MessageTrace | None) -> Any:
    step, runtime = task.saga_step, runtime_of(task.app)
    try:
        runtime.switchboard_of(step.saga).check(step)
        delivery = delivery_of(task, request, session, bound, runtime, trace)
        outcome = handle(runtime.services_of(step.saga), delivery)
    except TooManyDeferred as exc:
        keep_out(task, runtime, exc)
        raise
    except StoreError as exc:
        redeliver_if_it_helps(task, runtime.publisher, exc)
        raise
    except SagaNotFound as exc:
        if step.policy is IfMissing.DEFER and exc.saga == step.saga.name:  # a handler may have raised another
            defer_missing(task, runtime, session, bound, exc)
        raise
    conclude(task, request, delivery, outcome, runtime)
    if outcome.kind is Kind.FAILED:
        # the process that kept it may have died before the requester was notified
        dead_letter, text = dead_letter_id_of(step.name, session.message_id), "it failed before, and is kept as a dead letter"
        notify_requester(task.app, request, text, dead_letter=dead_letter)
        raise Ignore()  # after a failure no ``link`` or next task of a chain follows
    if outcome.kind is Kind.DEFERRED and not request.called_directly:
        raise Ignore()  # they follow when it is handled
    return outcome.result


def install(app: Celery, step: StepDefinition) -> None:
    """Register a step's tasks with a finalised app, under its name and its former ones, replacing an earlier definition."""
    for name in step.names:
        free_name(app, name, StepTask, "rename the step or the task")
        add_durable_task(app, StepTask, _run_of(step), name, step.options, saga_step=step)


def _run_of(step: StepDefinition) -> Any:
    """Return the function that Celery runs for the step: it has the message's parameters, without the state."""

    def run(self: StepTask, /, *args: Any, **kwargs: Any) -> Any:
        return handle_message(self, args, kwargs)

    functools.update_wrapper(run, step.function)
    del run.__wrapped__  # type: ignore[attr-defined]
    parameters = list(inspect.signature(step.function).parameters.values())[step.message_position :]
    task = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    run.__signature__ = inspect.Signature([task, *parameters])  # type: ignore[attr-defined]
    return run
