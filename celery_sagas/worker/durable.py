"""The base of all tasks of this library: messages are acknowledged after the work, and retries are confirmed."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from celery import Celery, Task
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject

from celery_sagas.errors import DefinitionError
from celery_sagas.worker.celery_internals import add_task, registered, unregister
from celery_sagas.worker.failures.raised import keep_failures
from celery_sagas.worker.failures.redelivery import may_publish_again, requeue
from celery_sagas.worker.failures.requests import keeping_failures
from celery_sagas.worker.failures.retries import mark_used_up
from celery_sagas.worker.publishing.publisher import take_return
from celery_sagas.worker.runtime import runtime_of
from celery_sagas.worker.sessions import is_batched

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
    #: Errors to which ``autoretry_for`` does not apply: Celery's retry would lose what the broker keeps.
    never_retried: ClassVar[tuple[type[Exception], ...]] = (Reject,)

    def retry(self, *args: Any, **options: Any) -> Any:
        """Publish the message again, confirmed, and raise ``Retry``; if that fails, requeue the message: Celery would lose it."""
        self._leave_batch()
        publisher = runtime_of(self.app).publisher
        if not may_publish_again(publisher, self):
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
            except Exception:
                mark_used_up(self.request)
                raise
            if unroutable := take_return(confirmed["producer"]):
                requeue(unroutable)
        if throw:
            raise retry
        return retry

    def replace(self, *args: Any, **options: Any) -> Any:
        """Publish another task in the place of this one, and raise ``Ignore``."""
        self._leave_batch()
        return super().replace(*args, **options)

    def _leave_batch(self) -> None:
        """Have the running message run as a task, which alone publishes it again, or publishes another in its place.

        Raises:
            Ignore: It is handled with others.
        """
        if is_batched(self.request):
            raise Ignore(f"{self.name} runs again, as a task")

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        """Have a worker's main process handle hard time limits."""
        self.Request = keeping_failures(self.Request)
        return super().start_strategy(app, consumer, **options)


def free_name(app: Celery, name: str, own: Any, remedy: str) -> None:
    """Remove an earlier definition of a task of the library's own classes from a finalised app.

    Raises:
        DefinitionError: Another task has this name.
    """
    existing = registered(app, name)
    if existing is not None and not isinstance(existing, own):
        raise DefinitionError(name, "another task of the app has this name", remedy)
    unregister(app, name)


def add_durable_task(
    app: Celery, own: Any, function: Callable[..., Any], name: str, options: Mapping[str, Any], **attributes: Any
) -> None:
    """Register a task with a finalised app.

    Args:
        app: The app.
        own: The task's class, in front of the class in the option ``base``, or of the app's own ``Task``.
        function: The task's function, which receives the task first.
        name: The task's name.
        options: Celery's task options.
        **attributes: Attributes of the task.
    """
    options = {**options, **attributes, "name": name, "bind": True}
    base: Any = options.pop("base", None) or app.Task
    given = options.get("dont_autoretry_for", getattr(base, "dont_autoretry_for", ()))
    options["dont_autoretry_for"] = (*given, *own.never_retried)
    made = type(own.__name__, (own, base), {"abstract": True, "__module__": own.__module__})
    add_task(app, function, base=made, **options)
    if own.keeps_failures:
        keep_failures(registered(app, name))
