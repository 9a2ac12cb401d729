"""Batches of steps: a process of the pool handles the messages of steps that wait in a worker together, in waves."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from typing import Any

from celery import Celery, signals, states
from celery.app import trace
from celery.app.task import Context
from celery.exceptions import SoftTimeLimitExceeded
from celery.utils.saferepr import saferepr
from kombu.utils.encoding import safe_repr

from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.waves import Batch, BatchedMessage
from celery_sagas.settings import read_settings
from celery_sagas.worker.batches.consumer import BatchConsumer, Settled, is_followed
from celery_sagas.worker.celery_internals import RunningTask, current_app, has_own_limits, runs_like_others, stores_result
from celery_sagas.worker.deliveries import conclude, delivery_of
from celery_sagas.worker.runtime import Runtime, runtime_of
from celery_sagas.worker.sessions import mark_batched, mark_over, session_of

logger = logging.getLogger("celery_sagas")

#: On Celery's consumer: how often it has connected, and its batch consumers since then, by the size of a batch.
_BATCHES = "_celery_sagas_batches"


class StepBatches(BatchConsumer):
    """Collects the messages of all steps of a worker whose batches may have as many messages."""

    linger_s = 0.005

    def __init__(self, consumer: Any, most: int) -> None:
        super().__init__(consumer)
        self._most = most

    @property
    def most(self) -> int:
        return self._most

    @property
    def target(self) -> Callable[[Sequence[Any]], Settled]:
        return handle_together

    def part_of(self, request: Any) -> Any:
        return request.request_dict

    def runs_alone(self, request: Any) -> bool:
        """Return whether others follow or wait for a message, or it has time limits, or has failed or ended a process before."""
        has_failed = request.delivery_info.get("redelivered") or request.request_dict.get("retries")
        has_limits = has_own_limits(request.task, *request.time_limits)
        return bool(has_failed or has_limits or is_followed(request) or stores_result(request))

    def is_urgent(self) -> bool:
        return self.is_idle()


def consumer_for(task: Any, consumer: Any) -> Any:
    """Return the consumer of a step's messages: a batch consumer, unless each must run as a task."""
    most = task.saga_step.batch or read_settings(task.app.conf).batch
    if most < 2 or not runs_like_others(task):
        return consumer
    connections, made = consumer.__dict__.get(_BATCHES, (None, {}))
    if connections != consumer.restart_count:  # what waits when the connection is lost is left to the broker
        made = {}
        consumer.__dict__[_BATCHES] = consumer.restart_count, made
    if most not in made:
        made[most] = StepBatches(consumer, most)
    return made[most]


class _Message:
    """A message in the process that handles it, with the request of its task."""

    def __init__(self, app: Celery, runtime: Runtime, described: Mapping[str, Any]) -> None:
        tasks: Any = app.tasks
        self.task: Any = tasks[described["task"]]
        self.request: Any = Context(dict(described), called_directly=False, is_eager=False)
        mark_batched(self.request)
        args, kwargs = described["args"], described["kwargs"]
        bound = self.task.saga_step.arguments.bind(args, kwargs)
        delivery = delivery_of(self.task, self.request, session_of(self.request), bound, runtime)
        self._call, self._has_run = delivery.call, False
        self._context = copy_context()
        self._runtime = runtime
        self.delivery = delivery._replace(call=self._run)

    def running(self) -> RunningTask:
        """Make its task the running one."""
        return RunningTask(self.task, self.request)

    def _run(self, function: Callable[..., Any], first: Any, /, **arguments: Any) -> Any:
        """Call a handler, between the signals of a task."""
        self._has_run = True
        self._send(signals.task_prerun)
        state: str = states.RETRY  # if it fails, it runs again
        result = None
        try:
            result = self._call(function, first, **arguments)
            state = states.SUCCESS
        finally:
            self._context = copy_context()
            self._send(signals.task_postrun, retval=result, state=state)
        return result

    def in_context(self, call: Callable[[], None]) -> None:
        """Call a function in the context in which the handler has ended, such as that of a trace."""
        self._context.run(call)

    def conclude(self, outcome: Outcome, seconds: float) -> None:
        """Report that it was handled, as Celery reports that a task has succeeded."""
        with self.running():
            if not self._has_run:
                self._send(signals.task_prerun)
                self._send(signals.task_postrun, retval=None, state=states.SUCCESS)
            mark_over(self.request)
            conclude(self.task, self.request, self.delivery, outcome, self._runtime)
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


def handle_together(described: Sequence[Mapping[str, Any]]) -> Settled:
    """Handle messages of steps in a process of the pool.

    Args:
        described: The dictionaries of their requests.
    """
    began, messages, batch = time.monotonic(), dict[int, _Message](), None
    try:
        app = current_app()
        runtime = runtime_of(app)
        messages = _readable(app, runtime, described)
        batch = _batch_of(runtime, messages.values())
        batch.handle()
    except SoftTimeLimitExceeded as exc:
        logger.warning("a batch of %d messages has met its soft time limit: %r", len(described), exc)
    except Exception:  # it must not end the worker's loop, which runs this where there is no pool of processes
        logger.exception("a batch of %d messages has failed", len(described))
    outcomes = dict(zip(messages, batch.outcomes, strict=True)) if batch else {}
    seconds = time.monotonic() - began
    for position, outcome in outcomes.items():
        if outcome is not None:
            _conclude(messages[position], outcome, seconds / len(described))
    left = [position for position in range(len(described)) if outcomes.get(position) is None]
    return Settled(left, seconds, batch is not None and batch.is_slow)


def _batch_of(runtime: Runtime, messages: Iterable[_Message]) -> Batch:
    """Return the messages as a batch."""
    batched = [BatchedMessage(each.delivery, each.running, each.in_context) for each in messages]
    listens = len(signals.before_task_publish.receivers) > 1  # beside the library's own
    return Batch(runtime.services, batched, (SoftTimeLimitExceeded,), publishes_each=listens)


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
