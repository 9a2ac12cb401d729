"""Unreadable messages: each of them ends, where Celery would end the worker, or hold the message indefinitely."""

import functools
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from billiard.einfo import ExceptionInfo
from celery.app.task import Context
from celery.platforms import EX_FAILURE

from celery_sagas.worker.failures.dead_letters import UNDECODED
from celery_sagas.worker.failures.faults import UNREADABLE, check_request, fault_of

logger = logging.getLogger("celery_sagas")

#: Names by which a header, or a value embedded in a body, would hide a method of the request.
_METHODS = frozenset(name for name, value in vars(Context).items() if callable(value) or isinstance(value, property))
#: Receives a consumer, a message and its error; returns whether to reject the message.
Refuse = Callable[[Any, Any, Exception], bool]


def guard_consumer(consumer: Any, refuse: Refuse) -> None:
    """Have a consumer refuse the messages that it fails to read, and continue; other errors propagate."""
    create = consumer.create_task_handler

    def create_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
        receive = create(*args, **kwargs)

        def on_task_received(message: Any) -> None:
            try:
                receive(message)
            except OSError:
                raise
            except UNREADABLE as exc:
                if fault_of(message) is None:
                    _end_worker(consumer, exc)
                if refuse(consumer, message, exc) and not message.acknowledged:
                    message.reject_log_error(logger, consumer.connection_errors)

        return on_task_received

    consumer.create_task_handler = create_task_handler


def guard_pool(worker: Any, refuse: Refuse) -> None:
    """Have a worker refuse the messages that it fails to hand over to its pool, possibly long after they arrived."""
    process, state = worker._process_task, import_module("celery.worker.state")  # a process that only sends does without it

    def free_place() -> None:
        with suppress(AttributeError):  # a pool without a limit, as Celery does for a revoked task
            worker._quick_release()

    def end(request: Any, error: Exception) -> None:
        with suppress(TypeError):  # an id that cannot be hashed: Celery has noted nothing under it
            state.task_ready(request)
        if request.acknowledged:  # it has ended, or begun: without processes, a task runs here
            logger.error("%s[%s] has ended in a way that cannot be read", request.name, request.id, exc_info=error)
        elif refuse(worker.consumer, request.message, error):
            request.reject(requeue=False)

    def process_task(request: Any) -> None:
        try:
            check_request(request)
        except UNREADABLE as exc:
            if fault_of(request.message) is not None:  # else a project's wrapper fails, and Celery must see the error
                free_place()
                end(request, exc)
                return
        try:
            process(request)
        except Exception as exc:
            free_place()  # a timer hands over a message with an eta, and only logs the error
            if isinstance(exc, OSError) or not isinstance(exc, UNREADABLE):
                raise
            forget_job(worker.pool, request.on_success)
            if fault_of(request.message) is None:
                _end_worker(worker.consumer, exc)
            end(request, exc)

    worker._process_task = process_task


def guard_targets(pool: Any) -> None:
    """Have a pool without processes treat Celery's errors around a task as the task's failure, as a pool of processes does.

    Otherwise it would drop the error, and keep the message.
    """
    apply = pool.on_apply

    def on_apply(target: Callable[..., Any], *args: Any, **options: Any) -> Any:
        is_celerys = getattr(target, "__module__", "") == "celery.app.trace"  # others have results of their own
        return apply(_answering(target) if is_celerys else target, *args, **options)

    pool.on_apply = on_apply


def _answering(target: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(target)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return target(*args, **kwargs)
        except Exception:
            return 1, ExceptionInfo(), 0.0  # the result of Celery's tracer for a failed task

    return run


def _end_worker(consumer: Any, error: Exception) -> NoReturn:
    """Raise an error that is no message's fault: it ends the worker, as without this library, and the message is redelivered.

    Celery swallows it in a timer, and if a message arrives just as the worker begins: the worker then ends by the state that its
    loop checks in each turn.

    Raises:
        Exception: The error; or one that names it, if a worker would treat it as a lost connection and reconnect repeatedly: on
            Redis a KeyError.
    """
    logger.critical("the worker ends: it fails over a message that is not at fault", exc_info=error)
    state: Any = import_module("celery.worker.state")
    state.should_stop = EX_FAILURE
    as_if_lost: tuple[type[Exception], ...] = consumer.connection_errors
    if not isinstance(error, as_if_lost):
        raise error
    raise RuntimeError(f"the worker ends: it fails over a message that is not at fault, with {error!r}") from error


def forget_job(pool: Any, callback: Callable[..., object]) -> None:
    """Remove the pool's record of a job that it could not send to any process: at its end it would wait for that job.

    Args:
        pool: The worker's pool.
        callback: Identifies the job: several messages may have the same id.
    """
    cache = getattr(getattr(pool, "_pool", None), "_cache", None) or {}
    for job in list(cache.values()):
        if job._callback == callback:
            job.discard()


def refusing(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a request's callback: if it failed because of the message, the pool would drop the error and keep the message.

    Errors about the process propagate: the message is redelivered once the worker has ended.
    """

    @functools.wraps(callback)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return callback(self, *args, **kwargs)
        except OSError:
            raise
        except UNREADABLE:
            logger.exception("%s[%s] is rejected, since what follows its end cannot be read", self.name, self.id)
            self.reject(requeue=False)

    return wrapped


def context_of(request: Any) -> Context:
    """Return the request that a task sees, in a worker's main process; as far as it can be read if no task could run."""
    try:
        fields = _fields_of(request._context.__dict__)
        return Context({**fields, "args": request.args, "kwargs": request.kwargs, "called_directly": False})
    except UNREADABLE:
        return request_of(request.message)


def request_of(message: Any) -> Context:
    """Return the request that a task would have had for this message, in either of Celery's protocols."""
    headers = _fields_of(message.headers)
    own = {"delivery_info": {"priority": message.properties.get("priority")}, "called_directly": False, "is_eager": False}
    if "task" in headers:
        return Context({**headers, **_body_of(message), **own, "headers": None})  # it finds them itself
    return Context({**_fields_of(message.payload), "headers": headers, **own})


def _body_of(message: Any) -> dict[str, Any]:
    try:
        args, kwargs, embedded = message.payload
        return {**(_fields_of(embedded) if isinstance(embedded, Mapping) else {}), "args": args, "kwargs": kwargs}
    except Exception as exc:  # an unreadable body is not lost either
        logger.warning("%s[%s] cannot be decoded: %r", message.headers["task"], message.headers.get("id"), exc)
        return {"args": None, "kwargs": None, UNDECODED: repr(exc)}


def _fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a request may have: none that hides one of its methods."""
    return {name: value for name, value in given.items() if name not in _METHODS}
