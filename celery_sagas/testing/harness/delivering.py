"""The delivery of one message: its task runs here as in a worker, with Celery's own requests and tracer."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from celery.exceptions import TaskRevokedError

from celery_sagas.testing.harness.broker import SentMessage
from celery_sagas.testing.harness.crashes import Crash, ProcessKilled
from celery_sagas.worker.failures.requests import keeping_failures
from celery_sagas.worker.requests.answers import confirm_answers

#: Runs in the place of a task, with the arguments of its message.
StandIn = Callable[..., Any]
_MISSING = object()


class Delivered:
    """What became of one delivery of a message, as a broker and a worker's pool see it."""

    def __init__(self) -> None:
        self.is_kept = True  #: the broker has the message: it was not acknowledged
        self.is_expired = False
        self.result = ""  #: as Celery shows it in its log
        self.error: BaseException | None = None


class _Envelope:
    """A message as kombu hands it to Celery's consumer."""

    content_type = None  #: the body is decoded
    content_encoding = None
    acknowledged = False

    def __init__(self, message: SentMessage) -> None:
        self.headers = dict(message.headers)
        self.body = self.payload = message.content
        self.properties = {"correlation_id": message.id, "reply_to": ""}
        is_redelivered = message.deliveries > 0
        self.delivery_info = {"exchange": "", "routing_key": message.queue, "redelivered": is_redelivered, "priority": None}


class _Pool:
    """A pool without processes: a task runs at once."""

    def __init__(self, delivered: Delivered) -> None:
        self._delivered = delivered

    def apply_async(self, target: Callable[..., Any], args: Any, *, accept_callback: Any, callback: Any, **_: object) -> None:
        """Run a task, and call back as a pool does."""
        accept_callback(os.getpid(), time.monotonic())
        failed, result, _runtime = answer = target(*args)
        if failed:
            error = result.exception
            self._delivered.error = getattr(error, "exc", error)
        else:
            self._delivered.result = result
        callback(answer)


class _NoEvents:
    enabled = False

    def send(self, *_: object, **__: object) -> None:
        """Send nothing."""


def deliver(message: SentMessage, crash: Crash, *, is_expired: bool, stand_in: StandIn | None) -> Delivered:
    """Deliver a message to its task, which runs to its end, or until its process ends.

    Args:
        message: The message.
        crash: Where the process ends, if it does.
        is_expired: Whether the message's time is over.
        stand_in: Runs in the place of the task.
    """
    app, delivered = message.app, Delivered()
    task: Any = app.tasks[message.task]
    confirm_answers(task)

    def end(*_: object) -> None:
        if task.acks_late:
            crash.reach("before_acknowledgement")
        delivered.is_kept = False

    def reject(_logger: object, _errors: object, requeue: bool = False) -> None:
        delivered.is_kept = requeue

    envelope: Any = _Envelope(message)
    request = keeping_failures(task.Request)(
        envelope, app=app, on_ack=end, on_reject=reject, hostname="test", eventer=_NoEvents(), connection_errors=()
    )
    request.maybe_expire = lambda: is_expired
    message.deliveries += 1
    with suppress(ProcessKilled), _running(task, stand_in, crash):
        try:
            request.execute_using_pool(_Pool(delivered))
        except TaskRevokedError:
            delivered.is_expired = True
        crash.reach("before_acknowledgement")  # one that was acknowledged early is lost by then
    return delivered


@contextmanager
def _running(task: Any, stand_in: StandIn | None, crash: Crash) -> Iterator[None]:
    """Have a function run in the place of a plain task; or the task itself, between two points at which its process may end."""
    is_ours = hasattr(task, "saga_step") or hasattr(task, "saga_aggregator")  # their stores have these points
    if stand_in is None and (is_ours or not crash.is_planned):
        yield
        return
    given, trace, run = task.__dict__.get("run", _MISSING), task.__trace__, stand_in or task.run

    def between(*args: Any, **kwargs: Any) -> Any:
        crash.reach("before_find")
        result = run(*args, **kwargs)
        crash.reach("after_handler")
        return result

    task.run, task.__trace__ = between, None
    confirm_answers(task)
    try:
        yield
    finally:
        task.__trace__ = trace
        if given is _MISSING:
            del task.run
        else:
            task.run = given
