"""The two tasks of an aggregator: one buffers an item, the other flushes a group."""

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from celery import Celery
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject, TaskPredicate
from celery.exceptions import Retry as RetryAsked
from celery.utils.time import get_exponential_backoff_interval, maybe_make_aware

from celery_sagas import signals
from celery_sagas.core.aggregators.batch import Batch
from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.engine.aggregators.buffering import new_item, unread_item
from celery_sagas.engine.aggregators.flush import Flush, Flushed, FlushVerdict
from celery_sagas.engine.session import refuse_inline
from celery_sagas.errors import InvalidMessage, StoreError
from celery_sagas.stores.items import NewItem
from celery_sagas.stores.ports import shared_of
from celery_sagas.stores.shared import SharedTransaction
from celery_sagas.worker.aggregators.flushes import add_items, ask, ask_for_the_rest, send_terms_of
from celery_sagas.worker.celery_internals import time_limit_s
from celery_sagas.worker.durable import DurableTask, add_durable_task, bearing, free_name
from celery_sagas.worker.failures.dead_letters import announce
from celery_sagas.worker.failures.raised import failing
from celery_sagas.worker.failures.redelivery import redeliver_if_it_helps
from celery_sagas.worker.headers import AGGREGATOR, MESSAGE_ID, REDELIVERIES, check_message_id, headers_of
from celery_sagas.worker.runtime import Runtime, refuse_stand_in, runtime_of
from celery_sagas.worker.sessions import current_session, direct_session, new_message_id, open_sessions, session_of

logger = logging.getLogger("celery_sagas")

#: Seconds that a group pauses if its function has rejected and requeued its message, which the broker redelivers at once.
_REJECTED_S = 1.0
#: Seconds after which no other group of a message is flushed: other processes of the pool flush the rest.
_TOGETHER_S = 0.25
#: Task options for publishing a message: both tasks have them.
_PUBLISHING = ("queue", "exchange", "routing_key", "priority", "compression", "delivery_mode", "mandatory", "immediate")


class BufferTask(DurableTask):
    """Buffers an item: the task behind ``delay``."""

    abstract = True
    saga_aggregator: ClassVar[AggregatorDefinition]

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, *positional: Any, **options: Any
    ) -> Any:
        """Publish an item, encoded by its type; a redelivered task publishes it under the same id."""
        refuse_stand_in(self.app)
        headers = options["headers"] = {AGGREGATOR: self.name, **(options.get("headers") or {})}
        args, kwargs = self._encoded(args or (), kwargs or {}, headers)
        check_message_id(self.name, headers.get(MESSAGE_ID))
        session = current_session()
        if task_id is None and session is not None and session.sending is None:
            task_id = new_message_id(session, self.name, args[0])
        return super().apply_async(args, kwargs, task_id, *positional, **options)

    def signature(self, args: Any = None, kwargs: Any = None, *positional: Any, **options: Any) -> Signature[Any]:
        """Return a signature, its item encoded; without an item it is partial: an answer becomes the item."""
        if args or kwargs:
            args, kwargs = self._encoded(args or (), kwargs or {}, options.get("headers") or {})
        return bearing(super().signature(args, kwargs, *positional, **options), {AGGREGATOR: self.name})

    def start_strategy(self, app: Celery, consumer: Any, **options: Any) -> Any:
        """Have a worker buffer messages together that it has received together."""
        # imports celery.worker, which a process that only sends does without
        from celery_sagas.worker.aggregators.batch_consumer import ItemBatches

        return super().start_strategy(app, ItemBatches(consumer, self), **options)

    def s(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return a signature, which may be partial."""
        return self.signature(args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature[Any]:
        """Return an immutable signature: no answer is added to its arguments."""
        return self.signature(args, kwargs, immutable=True)

    def _encoded(self, args: Sequence[Any], kwargs: Mapping[str, Any], headers: Mapping[str, Any]) -> Any:
        """Return the arguments of a message, its item encoded; a redelivered item is passed on as is: other code may read it.

        Raises:
            InvalidMessage: The item does not fit, or belongs to no group.
        """
        if REDELIVERIES in headers:
            return args, kwargs
        items = self.saga_aggregator.items
        encoded = items.encode_and_read(items.value_of(args, kwargs))
        items.group_of(encoded.item)
        return (encoded.value,), {}


class FlushTask(DurableTask):
    """Flushes one batch of each of its groups; errors of its function are retried, with longer and longer pauses."""

    abstract = True
    saga_aggregator: ClassVar[AggregatorDefinition]
    keeps_failures = False  # a failed flush has nothing to keep: its items are still buffered

    max_retries = None
    retry_backoff: bool | float = True
    retry_backoff_max = 30
    retry_jitter = False

    def delay_s(self, attempts: int) -> float:
        """Return the seconds until the next attempt, by Celery's retry options."""
        if not self.retry_backoff:
            return float(self.default_retry_delay)
        factor = max(1, int(self.retry_backoff))
        return float(get_exponential_backoff_interval(factor, attempts, self.retry_backoff_max, self.retry_jitter))


def buffer_message(task: BufferTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Buffer the item of the message that a task runs for now, or of a direct call."""
    definition, request = task.saga_aggregator, task.request
    value = definition.items.value_of(args, kwargs)
    if request.called_directly or request.is_eager:
        refuse_inline(definition.name, open_sessions())
        value = definition.items.encode(value)
    if request.called_directly:
        with direct_session(request) as session:
            return _buffer(task, session.message_id, value)
    check_message_id(task.name, headers_of(request).get(MESSAGE_ID))
    return _buffer(task, session_of(request).message_id, value)


def _buffer(task: BufferTask, id: str, value: Any) -> None:
    runtime = runtime_of(task.app)
    item = _item_of(task.saga_aggregator, id, value, runtime.settings.max_state_bytes)
    try:
        add_items(runtime, task.saga_aggregator, [item])
    except StoreError as exc:
        redeliver_if_it_helps(task, runtime.publisher, exc)
        raise


def flush_groups(task: FlushTask, groups: Sequence[str]) -> Any:
    """Flush one batch of each group whose trigger has fired; return the function's result, if there is one group.

    With one group, an error of the function is the task's. Of several groups, one that fails is flushed again by a message of its
    own. Those that have not begun once the others have taken a quarter of a second, or after an error of the library, are left to
    other messages.
    """
    if len(groups) == 1:
        return flush_group(task, groups[0])
    began, waiting = time.monotonic(), deque(groups)
    try:
        while waiting and time.monotonic() - began < _TOGETHER_S:
            _flush_one_of_many(task, waiting.popleft())
    except TaskPredicate:  # the message is delivered again
        waiting.clear()
        raise
    finally:
        ask_for_the_rest(runtime_of(task.app), task.saga_aggregator, list(waiting))
    return None


def flush_group(task: FlushTask, group: str) -> Any:
    """Flush one batch of a group, if its trigger has fired; return the function's result."""
    flushed = _flush(task, group)
    if flushed.error is not None:
        _fail(task, flushed.error, flushed)
    return flushed.result


def _flush_one_of_many(task: FlushTask, group: str) -> None:
    flushed = _flush(task, group)
    if flushed.error is None or flushed.is_settled or isinstance(flushed.error, RetryAsked):  # that has published a message
        return
    name, id = task.saga_aggregator.name, task.request.id
    logger.warning("%s[%s] failed, and flushes the group %r again", name, id, group, exc_info=flushed.error)
    ask(runtime_of(task.app), task.saga_aggregator, group, flushed.delay_s)


def _flush(task: FlushTask, group: str) -> Flushed:
    definition, runtime = task.saga_aggregator, runtime_of(task.app)
    flush = Flush(
        store=runtime.batches.aggregates,
        definition=definition,
        rules=runtime.rules_of(definition),
        group=group,
        call=_caller(task, group),
        ask=functools.partial(ask, runtime, definition),
        judge=functools.partial(_judge, task),
        terms=send_terms_of(task.app, runtime.settings.max_state_bytes),
        dispatcher=runtime.dispatcher_of(runtime.batches),
        time_limit_s=time_limit_s(task),
        begin=_beginning(runtime, definition),
    )
    session_of(task.request).message_id = flush.token  # a redelivery may flush another batch, whose messages must have other ids
    try:
        flushed = flush.execute()
    except StoreError as exc:
        redeliver_if_it_helps(task, runtime.publisher, exc)
        raise
    _log(task, flushed)
    for dead_letter, error in flushed.rejections:
        announce(task, dead_letter, error)
    return flushed


def _beginning(runtime: Runtime, definition: AggregatorDefinition) -> Callable[[], SharedTransaction] | None:
    """Return what begins the transaction that an aggregator's function shares with the removal of its batch."""
    if definition.transaction is None:
        return None
    return functools.partial(shared_of(runtime.batches, "saga_aggregator_backend, or saga_backend,").open, definition.transaction)


def _fail(task: FlushTask, error: Exception, flushed: Flushed) -> None:
    request = task.request
    if isinstance(error, TaskPredicate) or flushed.is_settled or request.called_directly or request.is_eager:
        raise error
    raise task.retry(exc=error, countdown=flushed.delay_s)


def _judge(task: FlushTask, error: Exception, attempts: int) -> FlushVerdict:
    """Return the consequences of an error of the function."""
    if isinstance(error, Ignore):
        return FlushVerdict(is_done=True)
    if isinstance(error, RetryAsked):
        return FlushVerdict(is_counted=False, delay_s=_seconds_until(task, error))
    if isinstance(error, Reject):
        return FlushVerdict(is_counted=False, delay_s=_REJECTED_S)
    return FlushVerdict(delay_s=task.delay_s(attempts))


def _seconds_until(task: FlushTask, asked: RetryAsked) -> float:
    when: Any = asked.when
    if isinstance(when, int | float):
        return float(when)
    return max(0.0, (maybe_make_aware(when) - task.app.now()).total_seconds()) if when is not None else 0.0


def _caller(task: FlushTask, group: str) -> Callable[..., Any]:
    """Return the function for the batches of a group, whose ``self.retry()`` publishes a message for this group alone."""
    definition, request = task.saga_aggregator, task.request
    function = failing()(definition.function)
    call = functools.partial(function, task) if definition.bind else function

    def call_for_group(batch: Batch[Any], *session: Any) -> Any:
        args, request.args = request.args, [group]
        try:
            return call(batch, *session)
        finally:
            request.args = args

    return call_for_group


def _item_of(definition: AggregatorDefinition, id: str, value: Any, max_bytes: int) -> tuple[str, NewItem]:
    """Return the group of a message's item, and the item as it is buffered; an unreadable one waits for code that can read it."""
    try:
        return new_item(definition, id, value, max_bytes)
    except InvalidMessage as exc:
        try:
            group, item = unread_item(definition, id, value, max_bytes)
        except InvalidMessage:
            raise exc from None
        logger.warning("%s[%s] cannot be read, and waits until it can be: %s", definition.name, id, exc)
        return group, item


def _log(task: FlushTask, flushed: Flushed) -> None:
    if not flushed.reason:
        logger.debug("%s[%s] found nothing to flush in the group %r", task.name, task.request.id, flushed.group)
        return
    is_handled = flushed.error is None or flushed.is_settled
    logger.info(
        "%s[%s] %s %d items of the group %r (%s), %d rejected, %d unresolved",
        task.name,
        task.request.id,
        "flushed" if is_handled else "failed with",
        flushed.items,
        flushed.group,
        flushed.reason,
        flushed.rejected,
        flushed.unresolved,
    )
    if is_handled and flushed.items:
        signals.batch_flushed.send(sender=task, flushed=flushed)


def install_aggregator(app: Celery, definition: AggregatorDefinition) -> None:
    """Register an aggregator's tasks with a finalised app, replacing an earlier definition."""
    for name in definition.names:
        free_name(app, name, BufferTask | FlushTask, "rename one of them, or give name=")
    options = definition.options
    publishing = {name: options[name] for name in _PUBLISHING if name in options}
    add_durable_task(app, BufferTask, _buffering(definition), definition.name, publishing, saga_aggregator=definition)
    add_durable_task(app, FlushTask, _flushing(definition), definition.flush_name, options, saga_aggregator=definition)


def _buffering(definition: AggregatorDefinition) -> Any:
    def run(self: BufferTask, /, *args: Any, **kwargs: Any) -> None:
        buffer_message(self, args, kwargs)

    return _named(run, definition)


def _flushing(definition: AggregatorDefinition) -> Any:
    def run(self: FlushTask, /, group: str = "", *groups: str) -> Any:
        return flush_groups(self, (group, *groups))

    return _named(run, definition)


def _named(run: Any, definition: AggregatorDefinition) -> Any:
    run.__module__, run.__doc__ = definition.function.__module__, definition.function.__doc__
    return run
