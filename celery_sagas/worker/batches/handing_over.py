"""Handing a message over: what a step sends to a step is handled by the process that has committed it, without the broker."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from celery.canvas import Signature
from kombu.utils.json import dumps, loads

from celery_sagas.settings import Settings
from celery_sagas.stores.records import Outgoing
from celery_sagas.worker.celery_internals import destination_of, publishes_like_others, routing_of, runs_like_others
from celery_sagas.worker.events import PUBLISH
from celery_sagas.worker.publishing.signatures import publish
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.serialization import deserialized

#: Options of messages that are handed over: others say how the broker, or a worker, is to treat a message.
_OPTIONS = frozenset({"task_id", "root_id", "parent_id", "headers"})
#: Options of a task, or of its route, that say so for all of its messages.
_TREATED = frozenset({"priority", "serializer", "expires"})


def batch_size(task: Any, settings: Settings) -> int:
    """Return the most messages of a step that are handled together; 1 if each must run as a task."""
    most: int = task.saga_step.batch or settings.batch
    alone = isinstance(task.saga_step.transaction, str)  # Celery closes Django's connections around each task
    return most if runs_like_others(task) and not alone else 1


def queues_of(consumer: Any) -> tuple[str, ...]:
    """Return the queues of a worker to which messages need not go; none while its events or rate limits apply to each message."""
    if _sends_task_events(consumer) or any(consumer.task_buckets.values()) or consumer.task_consumer is None:
        return ()
    return tuple(queue.name for queue in consumer.task_consumer.queues)


def _sends_task_events(consumer: Any) -> bool:
    """Return whether each message is an event; an event dispatcher is also enabled for a worker's heartbeats."""
    events = consumer.event_dispatcher
    of_tasks = events and events.enabled and (not events.groups or "task" in events.groups)
    return bool(of_tasks or consumer.app.conf.task_send_sent_event)


def request_of(
    runtime: Runtime,
    rows: Sequence[Outgoing],
    queues: Collection[str],
    hostname: str,
    *,
    backend: str | None = None,
    batched: int = 1,
) -> dict[str, Any] | None:
    """Return the request of the last of these messages, as a worker makes it; ``None`` if it must be published.

    It may be handled at once if it is for a step of this app whose messages are handled in batches of this size, nothing follows
    it, and it would go to one of these queues; and if it overtakes none of the other messages.

    Raises:
        Exception: It cannot be published either.
    """
    app, (*others, last) = runtime.app, rows
    tasks: Any = app.tasks
    task = tasks.get(last.task)
    saga = _saga_of(task)
    if saga is None or batch_size(task, runtime.settings) < max(2, batched) or not publishes_like_others(app, task):
        return None
    if saga.backend != backend:
        return None
    if any(_may_reach(tasks, row.task, saga) for row in others) or _TREATED & routing_of(app, last.task).keys():
        return None
    sent = deserialized(app, last.payload)
    if type(sent) is not Signature or not _OPTIONS.issuperset(sent.options) or app.conf.task_serializer != "json":
        return None
    if destination_of(app, sent, sent.options) not in queues:
        return None
    kept = _Kept()
    publish(app, sent, kept, retry=False)
    return kept.request(hostname)


def _may_reach(tasks: Mapping[str, Any], name: str, saga: Any) -> bool:
    """Return whether a message to a task may reach a saga: one of an unknown task, or an event, may."""
    task = tasks.get(name)
    return name == PUBLISH or task is None or _saga_of(task) is saga


def _saga_of(task: Any) -> Any:
    step = getattr(task, "saga_step", None)
    return None if step is None else step.saga


class _Kept:
    """Stands in for a producer, and keeps the message that Celery publishes with it."""

    def __init__(self) -> None:
        self.connection = self
        self._body: Any = None
        self._headers: dict[str, Any] = {}
        self._properties: dict[str, Any] = {}

    @contextmanager
    def _reraise_as_library_errors(self) -> Iterator[None]:
        yield

    def publish(self, body: Any, *, headers: dict[str, Any], **properties: Any) -> None:
        """Keep a message."""
        self._body, self._headers, self._properties = body, headers, properties

    def request(self, hostname: str) -> dict[str, Any]:
        """Return the dictionary of the message's request."""
        (args, kwargs, _), headers = loads(dumps([self._body, self._headers]))
        properties = self._properties
        info = {
            "exchange": properties["exchange"],
            "routing_key": properties["routing_key"],
            "priority": properties.get("priority", 0),
            "redelivered": False,
        }
        named = {name: properties.get(name) for name in ("correlation_id", "reply_to")}
        return {
            **headers,
            **named,
            "properties": {**named, "delivery_info": info},
            "hostname": hostname,
            "delivery_info": info,
            "args": args,
            "kwargs": kwargs,
        }
