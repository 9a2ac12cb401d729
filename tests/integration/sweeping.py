"""A relay alone over a real broker, on a clock of the test."""

import json
from collections import Counter
from typing import Any

from celery import Celery
from kombu import Queue

from celery_sagas.engine.outbox.publishing import Receipt
from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.testing.clock import Clock
from celery_sagas.worker.publishing import open_publisher

TERMS = Terms(interval_s=1.0, lease_s=60.0, max_attempts=3, retention_s=3600.0)


class Deployment:
    """An app with a queue, a relay, and rows of which some are not like the others."""

    def __init__(self, app: Celery, *, in_batches: bool = True) -> None:
        self.app = app
        self.queue = app.conf.task_default_queue
        self.clock = Clock()
        self.backend = MemoryBackend("memory://", prefix="", clock=self.clock)
        self.publisher: Any = open_publisher(app)
        if not in_batches:
            self.publisher.publish_many = lambda _: Receipt()
        self.relay = Relay(
            self.backend,
            self.publisher,
            lambda _: True,
            TERMS,
            clock=lambda: self.clock.now / 1000,
            wall_clock=lambda: self.clock.now / 1000,
        )

    def close(self) -> None:
        """Close the connections."""
        self.publisher.close()

    def add(self, *names: str, **options: Any) -> None:
        """Commit rows."""
        rows = tuple(Outgoing(name, "sent", name, "plain", self._payload(name, options)) for name in names)
        entry = Entry("order.place", f"cause of {names}", "a", "started", "order", "42", "i", 1, "{}")
        self.backend.sagas.record(Effects(entry, rows))
        self.clock.advance(1)

    def _payload(self, name: str, options: dict[str, Any]) -> str:
        return json.dumps(dict(self.app.signature("plain").set(task_id=name, **options)))

    def sweep_for(self, seconds: int) -> None:
        """Sweep once a second."""
        for _ in range(seconds):
            self.relay.sweep()
            self.clock.advance(1_000)

    def arrived(self) -> Counter[str]:
        """Take what is in the queue; return how often each message is there."""
        arrived: Counter[str] = Counter()
        with self.app.connection_for_read() as connection, connection.channel() as channel:
            queue = Queue(self.queue)(channel)
            while (message := queue.get(no_ack=True)) is not None:
                arrived[message.headers["id"]] += 1
        return arrived
