"""Batches of items: a process of the pool buffers the messages of an aggregator that wait in a worker together.

Each of them alone would cost as much as a task. If anything goes wrong, they run one by one as tasks: an unreadable item, a
full buffer and an unavailable store have no second code path.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from celery_sagas.core.aggregators.definition import AggregatorDefinition
from celery_sagas.core.registry import registry
from celery_sagas.engine.aggregators.buffering import new_item
from celery_sagas.errors import BufferFull, InvalidMessage, StoreError
from celery_sagas.stores.items import NewItem
from celery_sagas.worker.aggregators.flushes import add_items
from celery_sagas.worker.batches.consumer import BatchConsumer, Settled, is_followed
from celery_sagas.worker.celery_internals import current_app
from celery_sagas.worker.headers import MESSAGE_ID, check_message_id
from celery_sagas.worker.runtime import Runtime, runtime_of

logger = logging.getLogger("celery_sagas")

#: The most messages to buffer at once.
MOST = 500


class Arrived(NamedTuple):
    """The parts of a message that are needed to buffer it."""

    task_id: str
    named: object  #: the header with its producer's id, if there is one
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class ItemBatches(BatchConsumer):
    """Collects the messages of one aggregator."""

    linger_s = 0.05

    def __init__(self, consumer: Any, task: Any) -> None:
        super().__init__(consumer)
        self._task = task

    @property
    def most(self) -> int:
        return MOST

    @property
    def parts(self) -> int:
        return 1

    @property
    def target(self) -> Callable[[Sequence[Any]], Settled]:
        return partial(buffer_together, self._task.name)

    def part_of(self, request: Any) -> Arrived:
        args, kwargs, _ = request._payload
        return Arrived(str(request.id), request.request_dict.get(MESSAGE_ID), args, kwargs)

    def runs_alone(self, request: Any) -> bool:
        """Return whether others follow a message: its task publishes them."""
        return is_followed(request)


def buffer_together(name: str, arrived: Sequence[Arrived]) -> Settled:
    """Buffer messages in a process of the pool."""
    app = current_app()
    try:
        left = _buffer(runtime_of(app), registry.aggregators[name], arrived)
        return Settled(left)
    except StoreError as exc:
        logger.debug("%s: %d messages run one by one: %s", name, len(arrived), exc)
    except Exception:  # an error must not end the worker's loop, which runs this where there is no pool of processes
        logger.exception("%s: %d messages could not be buffered together, and run one by one", name, len(arrived))
    return Settled(range(len(arrived)))


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
