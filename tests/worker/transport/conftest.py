"""A queue on a real Redis, with producers and consumers of both transports."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from kombu import Connection

import celery_sagas.worker.transport.transport  # noqa: F401 - kombu would import it with what a test has replaced by then
from tests.servers import unique
from tests.waiting import DEADLINE_S


@dataclass
class Queue:
    """A queue, as kombu's own transport sees it."""

    url: str
    client: Any
    name: str = field(default_factory=lambda: unique("transport"))

    def publish(self, *bodies: str, queue: str = "", **options: Any) -> None:
        """Publish messages with kombu's own transport."""
        with Connection(self.url) as connection, connection.channel() as channel:
            for body in bodies:
                channel.basic_publish(channel.prepare_message(body, **options), "", queue or self.name)

    def push(self, *elements: str | bytes) -> None:
        """Append elements that no producer has made."""
        for element in elements:
            self.client.lpush(self.name, element)

    def waiting(self) -> list[str]:
        """Take all messages of the queue with kombu's own transport, and return their bodies in order."""
        bodies = []
        with Connection(self.url) as connection, connection.channel() as channel:
            while message := channel.basic_get(self.name, no_ack=True):
                bodies.append(message.body.decode())
        return bodies

    def unacknowledged(self) -> tuple[int, int]:
        """Return how many messages are noted, and how many times."""
        return self.client.hlen("unacked"), self.client.zcard("unacked_index")


@pytest.fixture
def queue(redis_url: str) -> Iterator[Queue]:
    """A queue of its own on a Redis that nobody else uses meanwhile."""
    with redis.Redis.from_url(redis_url) as client:
        yield Queue(redis_url, client)
        client.delete("unacked", "unacked_index")


class Consumer:
    """Consumes with ``sagas-redis://``, and keeps what it gets.

    Attributes:
        got: The messages, in order of their arrival.
        on_message: Called with each of them.
    """

    def __init__(self, url: str, queues: Sequence[str], prefetch: int = 10, **options: Any) -> None:
        no_ack = options.pop("no_ack", False)
        self.connection = Connection(f"sagas-{url}", transport_options=options)
        self.channel: Any = self.connection.channel()
        self.channel.basic_qos(0, prefetch, False)
        self.got: list[Any] = []
        self.on_message: Callable[[Any], object] = lambda message: None
        for queue in queues:
            self.channel.queue_declare(queue)
            self.channel.basic_consume(queue, no_ack, self._on_message, consumer_tag=queue)

    def _on_message(self, message: Any) -> None:
        self.got.append(message)
        self.on_message(message)

    @property
    def bodies(self) -> list[str]:
        """What it has got."""
        return [message.body.decode() for message in self.got]

    def drain(self, count: int) -> list[str]:
        """Receive until it has got so many messages in all; return their bodies."""
        while len(self.got) < count:
            self.connection.drain_events(timeout=DEADLINE_S)
        return self.bodies

    def drain_once(self, timeout_s: float = 0.01) -> list[str]:
        """Receive what is there; return the bodies of all messages so far."""
        with suppress(TimeoutError):
            self.connection.drain_events(timeout=timeout_s)
        return self.bodies


Consume = Callable[..., Consumer]


@pytest.fixture
def consume(queue: Queue) -> Iterator[Consume]:
    """Return a function that makes a consumer, of the queue if no others are named."""
    with ExitStack() as closing:

        def make(*queues: str, url: str = queue.url, **options: Any) -> Consumer:
            consumer = Consumer(url, queues or [queue.name], **options)
            closing.callback(consumer.connection.close)
            return consumer

        yield make
