"""The batch consumer: one process of the pool buffers the messages of an aggregator that wait in a worker together.

Each of them alone would cost as much as a task. If anything goes wrong, they run one by one as tasks: an unreadable item, a
full buffer and an unavailable store have no second code path.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery.worker.state import task_ready, task_reserved

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.registry import registry
from celery_sagas.engine.aggregators.buffering import new_item
from celery_sagas.errors import BufferFull, InvalidMessage, StoreError
from celery_sagas.stores.items import NewItem
from celery_sagas.worker.aggregators.flushes import add_items
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.failures.faults import UNREADABLE
from celery_sagas.worker.headers import MESSAGE_ID, check_message_id
from celery_sagas.worker.runtime import Runtime, runtime_of

logger = logging.getLogger("celery_sagas")

#: The most messages to buffer at once; and their part of the worker's limit of unacknowledged messages, so that it receives
#: more meanwhile.
MOST, OF_PREFETCHED = 500, 0.5
#: Seconds that a message waits for others.
LINGER_S = 0.05


class Arrived(NamedTuple):
    """The parts of a message that are needed to buffer it."""

    task_id: str
    named: object  #: the header with its producer's id, if there is one
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class BatchConsumer:
    """Replaces a worker's consumer for one aggregator, until the consumer connects again.

    Messages with an eta are passed here when they may run. Messages under a rate limit, as by a remote control command, run as
    tasks.
    """

    def __init__(self, consumer: Any, task: Any) -> None:
        self._consumer = consumer
        self._task = task
        self._waiting: deque[Any] = deque()
        self._is_timed = False

    def __getattr__(self, name: str) -> Any:
        """Return the consumer's attribute."""
        return getattr(self._consumer, name)

    def on_task_request(self, request: Any) -> None:
        """Accept a message that may run now; a message that others follow runs as a task, which calls them."""
        try:
            is_over, runs_alone = request.revoked(), _is_followed(request)  # or expired: then it is acknowledged
        except UNREADABLE:  # it fails again where it runs, and is refused
            is_over, runs_alone = False, True
        if is_over:
            task_ready(request)
            return
        if runs_alone:
            self._consumer.on_task_request(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= self._most():
            self._send()
        elif not self._is_timed:
            self._is_timed = True
            self._consumer.timer.call_after(LINGER_S, self._end_linger)

    def apply_eta_task(self, request: Any) -> None:
        """Accept a message whose eta has passed."""
        task_reserved(request)
        self.on_task_request(request)
        self._consumer.qos.decrement_eventually()

    def _most(self) -> float:
        prefetched = self._consumer.qos.value
        return max(1, min(MOST, prefetched * OF_PREFETCHED)) if prefetched else MOST

    def _end_linger(self) -> None:
        self._is_timed = False
        self._send()

    def _send(self) -> None:
        """Have a process of the pool buffer the waiting messages."""
        requests = list(_drained(self._waiting))
        if not requests:
            return
        try:
            arrived = [_arrived(request) for request in requests]
            self._consumer.pool.apply_async(
                buffer_together,
                (self._task.name, arrived),
                callback=partial(self._settle, requests),
                error_callback=partial(self._run_alone, requests),
            )
        except Exception as exc:  # such as a message that cannot be decoded
            self._run_alone(requests, exc)

    def _settle(self, requests: Sequence[Any], left: Sequence[int]) -> None:
        """Acknowledge the buffered messages, and run the rest as tasks."""
        alone = set(left)
        for number, request in enumerate(requests):
            if number in alone:
                self._consumer.on_task_request(request)
            else:
                task_ready(request)
                request.acknowledge()

    def _run_alone(self, requests: Sequence[Any], error: object) -> None:
        logger.debug("%s: %d messages run one by one: %s", self._task.name, len(requests), error)
        for request in requests:
            self._consumer.on_task_request(request)


def buffer_together(name: str, arrived: Sequence[Arrived]) -> list[int]:
    """Buffer messages in a process of the pool; return the positions of those that must run as tasks."""
    app = current_app()
    try:
        return _buffer(runtime_of(app), registry.aggregators[name], arrived)
    except StoreError as exc:
        logger.debug("%s: %d messages run one by one: %s", name, len(arrived), exc)
    except Exception:  # an error must not end the worker's loop, which runs this where there is no pool of processes
        logger.exception("%s: %d messages could not be buffered together, and run one by one", name, len(arrived))
    return list(range(len(arrived)))


def _buffer(runtime: Runtime, definition: AggregatorDefinition, arrived: Sequence[Arrived]) -> list[int]:
    items: dict[int, tuple[str, NewItem]] = {}
    left: list[int] = []
    max_bytes = runtime.settings.max_state_bytes
    for number, each in enumerate(arrived):
        try:
            check_message_id(definition.name, each.named)
            value = definition.items.value_of(each.args, each.kwargs)
            items[number] = new_item(definition, str(each.named or each.task_id), value, max_bytes)
        except InvalidMessage:
            left.append(number)
    if items:
        left += _add(runtime, definition, items)
    return left


def _add(runtime: Runtime, definition: AggregatorDefinition, items: Mapping[int, tuple[str, NewItem]]) -> list[int]:
    """Buffer items; return the positions of those whose group is full."""
    try:
        count = add_items(runtime, definition, list(items.values()))
    except BufferFull as exc:
        refused = set(exc.refused)
        return [number for number, (_, item) in items.items() if item.id in refused]
    logger.debug("%s: %d items were buffered, %d were known", definition.name, count, len(items) - count)
    return []


def _is_followed(request: Any) -> bool:
    """Return whether a link, the next of a chain or a chord waits for the end of a message's task, or may do so."""
    try:
        _, _, embedded = request._payload
        return any((embedded or {}).values())
    except Exception:  # what cannot be decoded fails where it runs, as in any task
        return True


def _arrived(request: Any) -> Arrived:
    args, kwargs, _ = request._payload
    return Arrived(str(request.id), request.request_dict.get(MESSAGE_ID), args, kwargs)


def _drained(waiting: deque[Any]) -> Any:
    while True:
        try:
            yield waiting.popleft()
        except IndexError:  # another thread may have taken the last one
            return
