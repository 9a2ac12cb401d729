"""Handing a message over: what a step sends to a step is handled by the process that has committed it, without the broker."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from celery.canvas import Signature
from kombu import Queue
from kombu.utils.json import dumps, loads

from celery_sagas.settings import Settings
from celery_sagas.stores.records import Outgoing
from celery_sagas.worker.celery_internals import runs_like_others
from celery_sagas.worker.publishing.signatures import publish
from celery_sagas.worker.runtime import Runtime
from celery_sagas.worker.serialization import deserialized

#: Options of messages that are handed over: others say how the broker, or a worker, is to treat a message.
_OPTIONS = frozenset({"task_id", "root_id", "parent_id", "headers"})


def batch_size(task: Any, settings: Settings) -> int:
    """Return the most messages of a step that are handled together; 1 if each must run as a task."""
    most: int = task.saga_step.batch or settings.batch
    return most if runs_like_others(task) else 1


def queues_of(consumer: Any) -> tuple[str, ...]:
    """Return the queues of a worker to which messages need not go; none while its events or rate limits apply to each message."""
    app, events = consumer.app, consumer.event_dispatcher
    if (events and events.enabled) or app.conf.task_send_sent_event or any(consumer.task_buckets.values()):
        return ()
    return tuple(app.amqp.queues.consume_from)


def request_of(runtime: Runtime, rows: Sequence[Outgoing], queues: Collection[str], hostname: str) -> dict[str, Any] | None:
    """Return the request of the last message that a step has sent, as a worker makes it; ``None`` if it must be published.

    It may be handled at once if it is for a step of this app whose messages are handled in batches, nothing follows it, and it
    would go to one of these queues; and if the step sends nothing else to the same saga, which it would overtake.

    Raises:
        Exception: It cannot be published either.
    """
    app, (*others, last) = runtime.app, rows
    tasks: Any = app.tasks
    task = tasks.get(last.task)
    saga = _saga_of(task)
    if saga is None or batch_size(task, runtime.settings) < 2 or any(_saga_of(tasks.get(row.task)) is saga for row in others):
        return None
    sent = deserialized(app, last.payload)
    if type(sent) is not Signature or not _OPTIONS.issuperset(sent.options):
        return None
    kept = _Kept()
    publish(app, sent, kept, retry=False)
    return kept.request(hostname) if kept.goes_to(queues) else None


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

    def goes_to(self, queues: Collection[str]) -> bool:
        """Return whether the message goes to one of these queues, and to no other."""
        properties = self._properties
        exchange, key, declared = properties["exchange"], properties["routing_key"], properties["declare"] or []
        if len(declared) != 1 or not isinstance(declared[0], Queue) or properties["serializer"] != "json":
            return False
        queue = declared[0]
        is_bound = queue.exchange.type == "direct" and (queue.exchange.name, queue.routing_key) == (exchange, key)
        return queue.name in queues and (is_bound if exchange else queue.name == key)

    def request(self, hostname: str) -> dict[str, Any]:
        """Return the dictionary of the message's request."""
        args, kwargs, _ = loads(dumps(self._body))
        properties = self._properties
        info = {
            "exchange": properties["exchange"],
            "routing_key": properties["routing_key"],
            "priority": properties.get("priority", 0),
            "redelivered": False,
        }
        named = {name: properties.get(name) for name in ("correlation_id", "reply_to")}
        return {
            **self._headers,
            **named,
            "properties": {**named, "delivery_info": info},
            "hostname": hostname,
            "delivery_info": info,
            "args": args,
            "kwargs": kwargs,
        }
