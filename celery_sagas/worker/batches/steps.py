"""Batches of steps: a process of the pool handles the messages of steps that wait in a worker together, in waves."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from celery import Celery, signals, states
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.saferepr import saferepr
from kombu.utils.encoding import safe_repr

from celery_sagas.engine.outcomes import Kind, Outcome
from celery_sagas.engine.waves import Batch, BatchedMessage, HandOver
from celery_sagas.observers import observers
from celery_sagas.settings import read_settings
from celery_sagas.stores.records import Outgoing
from celery_sagas.worker import tracing
from celery_sagas.worker.batches.consumer import BatchConsumer, Settled, is_followed
from celery_sagas.worker.batches.handing_over import batch_size, queues_of, request_of
from celery_sagas.worker.celery_internals import RunningTask, current_app, has_own_limits, stores_result
from celery_sagas.worker.deliveries import conclude, delivery_of
from celery_sagas.worker.headers import STEP_RETRIES
from celery_sagas.worker.runtime import Runtime, runtime_of
from celery_sagas.worker.sessions import mark_batched, mark_over, session_of

logger = logging.getLogger("celery_sagas")

#: On Celery's consumer: how often it has connected, and its batch consumers since then, by the size of a batch and the backend.
_BATCHES = "_celery_sagas_batches"


class StepBatches(BatchConsumer):
    """Collects the messages of all steps of a worker in one backend whose batches may have as many messages."""

    linger_s = 0.005
    most_linger_s = 0.02

    def __init__(self, consumer: Any, most: int, *, hands_over: bool = False) -> None:
        super().__init__(consumer)
        self._most = most
        self._hands_over = hands_over

    @property
    def most(self) -> int:
        return self._most

    @property
    def target(self) -> Callable[[Sequence[Any]], Settled]:
        return partial(handle_together, queues=queues_of(self._consumer)) if self._hands_over else handle_together

    def part_of(self, request: Any) -> Any:
        return request.request_dict

    def runs_alone(self, request: Any) -> bool:
        """Return whether others follow or wait for a message, or it has time limits, or has failed or ended a process before."""
        described = request.request_dict
        has_failed = request.delivery_info.get("redelivered") or described.get("retries") or described.get(STEP_RETRIES)
        has_limits = has_own_limits(request.task, *request.time_limits)
        return bool(has_failed or has_limits or is_followed(request) or stores_result(request))

    def is_urgent(self) -> bool:
        return self.is_idle()


def consumer_for(task: Any, consumer: Any) -> Any:
    """Return the consumer of a step's messages: a batch consumer, unless each must run as a task."""
    settings = read_settings(task.app.conf)
    if (most := batch_size(task, settings)) < 2:
        return consumer
    connections, made = consumer.__dict__.get(_BATCHES, (None, {}))
    if connections != consumer.restart_count:  # what waits when the connection is lost is left to the broker
        made = {}
        consumer.__dict__[_BATCHES] = consumer.restart_count, made
    group = most, task.saga_step.saga.backend
    if group not in made:
        made[group] = StepBatches(consumer, most, hands_over=settings.hand_over > 0)
    return made[group]


class _Message:
    """A message in the process that handles it, with the request of its task.

    Raises:
        StepHeld: Its step is held: its task has it wait.
    """

    def __init__(self, app: Celery, runtime: Runtime, described: Mapping[str, Any]) -> None:
        tasks: Any = app.tasks
        self.task: Any = tasks[described["task"]]
        step = self.task.saga_step
        runtime.switchboard_of(step.saga).check(step)
        self.request: Any = Context(dict(described), called_directly=False, is_eager=False)
        mark_batched(self.request)
        args, kwargs = described["args"], described["kwargs"]
        bound = step.arguments.bind(args, kwargs)
        session, tracer = session_of(self.request), tracing.tracer
        self.trace = None if tracer is None else tracer.message(self.task, self.request, session.message_id, is_batched=True)
        delivery = delivery_of(self.task, self.request, session, bound, runtime, self.trace)
        self._call, self._has_run = delivery.call, False
        self._context = copy_context()
        self._runtime = runtime
        self.delivery = delivery._replace(call=self._run)

    @property
    def batched(self) -> BatchedMessage:
        """What a batch needs of it."""
        return BatchedMessage(self.delivery, self.running, self.in_context)

    def running(self) -> RunningTask:
        """Make its task the running one."""
        return RunningTask(self.task, self.request)

    def _run(self, function: Callable[..., Any], first: Any, /, **arguments: Any) -> Any:
        """Call a handler, between the signals of a task."""
        self._has_run = True
        self._send(signals.task_prerun)
        self._attach()
        state: str = states.RETRY  # if it fails, it runs again
        result = None
        try:
            result = self._call(function, first, **arguments)
            state = states.SUCCESS
        finally:
            self._context = copy_context()
            self._send(signals.task_postrun, retval=result, state=state)
        self._attach()  # the signal's receivers may have ended what is attached
        return result

    def _attach(self) -> None:
        if self.trace is not None:
            self.trace.attach()

    def in_context(self, call: Callable[[], None]) -> None:
        """Call a function in the context in which the handler has ended, such as that of a trace."""
        self._context.run(call)

    def conclude(self, outcome: Outcome, seconds: float) -> None:
        """Report that it was handled, as Celery reports that a task has succeeded; or that it was ignored, if it is deferred."""
        is_deferred = outcome.kind is Kind.DEFERRED
        with self.running():
            if not self._has_run:
                self._send(signals.task_prerun)
            if self.trace is not None:
                self.trace.end()
            if not self._has_run:
                self._send(signals.task_postrun, retval=None, state=states.IGNORED if is_deferred else states.SUCCESS)
            mark_over(self.request)
            conclude(self.task, self.request, self.delivery, outcome, self._runtime)
            step = self.delivery.step
            for observer in observers:
                observer.handled(step.saga.name, step.name, outcome.kind.value, seconds)
            if is_deferred:
                return
            if signals.task_success.receivers:
                signals.task_success.send(sender=self.task, result=outcome.result, runtime=seconds)
            self._log_success(outcome.result, seconds)

    def _send(self, signal: Any, **about: Any) -> None:
        if signal.receivers:
            request = self.request
            signal.send(sender=self.task, task_id=request.id, task=self.task, args=request.args, kwargs=request.kwargs, **about)

    def _log_success(self, result: Any, seconds: float) -> None:
        if not trace.logger.isEnabledFor(logging.INFO):
            return
        request = self.request
        context = {
            "id": request.id,
            "name": trace.get_task_name(request, self.task.name),
            "args": getattr(request, "argsrepr", None) or safe_repr(request.args),
            "kwargs": getattr(request, "kwargsrepr", None) or safe_repr(request.kwargs),
            "return_value": saferepr(result, self.task.resultrepr_maxsize),
            "runtime": seconds,
        }
        trace.info(trace.LOG_SUCCESS, context)


def handle_together(described: Sequence[Mapping[str, Any]], queues: Collection[str] = ()) -> Settled:
    """Handle messages of steps in a process of the pool, and messages that they send.

    Args:
        described: The dictionaries of their requests.
        queues: What would go to these is handled here, if possible.
    """
    began, handling = time.monotonic(), _Handling(described, queues)
    try:
        handling.run()
    except SoftTimeLimitExceeded as exc:
        logger.warning("a batch of %d messages has met its soft time limit: %r", len(described), exc)
    except Exception:  # it must not end the worker's loop, which runs this where there is no pool of processes
        logger.exception("a batch of %d messages has failed", len(described))
    seconds, handled = time.monotonic() - began, handling.handled()
    for message, outcome in handled:
        _conclude(message, outcome, seconds / len(handled))
    handling.leave_traces()
    return Settled(handling.left(), seconds, handling.is_slow)


class _Handling:
    """The messages of a batch in the process that handles them."""

    def __init__(self, described: Sequence[Mapping[str, Any]], queues: Collection[str]) -> None:
        self._described = described
        self._queues = queues
        self._messages: dict[int, _Message] = {}  #: that can be read, by their positions
        self._handed_over: list[_Message] = []
        self._batch: Batch | None = None

    def run(self) -> None:
        """Handle the messages."""
        self._app = current_app()
        self._runtime = runtime_of(self._app)
        self._messages = _readable(self._app, self._runtime, self._described)
        messages = [each.batched for each in self._messages.values()]
        if not messages:
            return
        saga = messages[0].delivery.step.saga
        self._backend = saga.backend  # that of all of them
        self._batch = Batch(
            self._runtime.services_of(saga),
            messages,
            (SoftTimeLimitExceeded,),
            publishes_each=_is_publishing_watched(),
            hand_over=HandOver(self._runtime.settings.hand_over, self._take) if self._queues else None,
        )
        self._batch.handle()

    def _take(self, rows: Sequence[Outgoing]) -> BatchedMessage | None:
        """Take over the last of these messages, if it may be handled here."""
        try:
            hostname, batched = self._described[0]["hostname"], len(self._described)
            request = request_of(self._runtime, rows, self._queues, hostname, backend=self._backend, batched=batched)
            if request is None:
                return None
            self._handed_over.append(_Message(self._app, self._runtime, request))
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            logger.debug("%s[%s] is published: %r", rows[-1].task, rows[-1].message_id, exc)
            return None
        return self._handed_over[-1].batched

    def handled(self) -> list[tuple[_Message, Outcome]]:
        """Return the messages that were handled."""
        if self._batch is None:
            return []
        given = zip(self._messages.values(), self._batch.outcomes, strict=True)
        handed_over = zip(self._handed_over, self._batch.handed_over, strict=False)  # a time limit may have struck in between
        return [(message, outcome) for message, outcome in (*given, *handed_over) if outcome]

    def left(self) -> list[int]:
        """Return the positions of the messages that were not handled."""
        outcomes = dict(zip(self._messages, self._batch.outcomes, strict=True)) if self._batch else {}
        return [position for position in range(len(self._described)) if outcomes.get(position) is None]

    def leave_traces(self) -> None:
        """End what traces the messages that were not handled."""
        for message in (*self._messages.values(), *self._handed_over):
            if message.trace is not None:
                message.trace.leave()

    @property
    def is_slow(self) -> bool:
        """Whether the handlers took too long."""
        return self._batch is not None and self._batch.is_slow


def _is_publishing_watched() -> bool:
    """Return whether somebody listens to what is published, beside this library."""
    return len(signals.before_task_publish.receivers) > 1 or bool(signals.after_task_publish.receivers)


def _conclude(message: _Message, outcome: Outcome, seconds: float) -> None:
    """Report on a handled message; an error about one, such as a time limit, affects no other."""
    try:
        message.conclude(outcome, seconds)
    except Exception:
        logger.exception("%s[%s] was handled, and that cannot be reported", message.task.name, message.request.id)


def _readable(app: Celery, runtime: Runtime, described: Sequence[Mapping[str, Any]]) -> dict[int, _Message]:
    """Return the messages that can be read, by their positions."""
    messages = {}
    for position, each in enumerate(described):
        try:
            messages[position] = _Message(app, runtime, each)
        except SoftTimeLimitExceeded:
            raise
        except Exception as exc:
            logger.debug("%s[%s] is handled alone: %r", each.get("task"), each.get("id"), exc)
    return messages
