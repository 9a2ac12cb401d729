"""The base of all tasks of this library: messages are acknowledged after the work, and retries are confirmed."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from celery.canvas import Signature
from celery.exceptions import Reject

from celery_sagas.worker.failures.redelivery import requeue
from celery_sagas.worker.failures.requests import keeping_failures
from celery_sagas.worker.publishing.publisher import ConfirmedPublisher, take_return
from celery_sagas.worker.runtime import runtime_of

if TYPE_CHECKING:
    _Task = Task[Any, Any]
else:
    _Task = Task  # generic for type checkers only, before Celery 5.6

#: The parameters of ``Task.retry``, in their order.
_RETRY = ("args", "kwargs", "exc", "throw", "eta", "countdown", "max_retries")


def bearing(sent: Signature[Any], headers: Mapping[str, Any]) -> Signature[Any]:
    """Put headers on a signature, unless it has them: any worker may publish a signature that follows another task."""
    sent.options["headers"] = {**headers, **(sent.options.get("headers") or {})}
    return sent


class DurableTask(_Task):
    """A task in front of the app's own ``Task``, whose names it does not override."""

    abstract = True

    # Nothing is acknowledged before it is committed: not before the run, and not when the worker is lost or out of time.
    acks_late = True
    reject_on_worker_lost = True
    acks_on_timeout = False  # Celery 5.7; before it, one flag covers time limits and failures
    ignore_result = True
    keeps_failures = True  #: a permanently failed message becomes a dead letter

    def retry(self, *args: Any, **options: Any) -> Any:
        """Publish the message again, confirmed, and raise ``Retry``; if that fails, requeue the message: Celery would lose it."""
        publisher = runtime_of(self.app).publisher
        if self.request.called_directly or self.request.is_eager or not isinstance(publisher, ConfirmedPublisher):
            return super().retry(*args, **options)
        options = dict(zip(_RETRY, args, strict=False)) | options
        throw = options.pop("throw", True)
        with ExitStack() as stack:
            try:
                confirmed = stack.enter_context(publisher.confirming())
            except Exception as error:  # the broker is away
                requeue(error)
            try:
                retry = super().retry(throw=False, **{**confirmed, **options})
            except Reject as error:
                requeue(error)
            if unroutable := take_return(confirmed["producer"]):
                requeue(unroutable)
        if throw:
            raise retry
        return retry

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        """Have a worker's main process handle hard time limits."""
        self.Request = keeping_failures(self.Request)
        return super().start_strategy(app, consumer, **options)
