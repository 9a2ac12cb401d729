"""A relay over RabbitMQ, on a clock of the test: rows that the broker does not take, among rows that it does."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from celery import Celery
from kombu import Queue

from celery_sagas.engine.relay import Relay, Terms
from celery_sagas.stores.memory.backend import MemoryBackend
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.testing.clock import Clock
from celery_sagas.worker import publisher
from celery_sagas.worker.pipeline import pipeline_of
from celery_sagas.worker.publisher import ConfirmedPublisher
from tests import rabbitmq_servers
from tests.servers import unique

TERMS = Terms(interval_s=1.0, lease_s=60.0, max_attempts=3, retention_s=3600.0)


class Deployment:
    """An app with a queue, a relay, and rows of which some are not like the others."""

    def __init__(self, app: Celery, with_pipeline: bool) -> None:
        self.app = app
        self.queue = app.conf.task_default_queue
        self.clock = Clock()
        self.backend = MemoryBackend("memory://", prefix="", clock=self.clock)
        self.publisher = ConfirmedPublisher(app)
        pipeline = pipeline_of(app, self.publisher) if with_pipeline else None
        self.relay = Relay(
            self.backend,
            self.publisher,
            lambda _: True,
            TERMS,
            pipeline,
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


Deployed = Callable[[bool], Deployment]


@pytest.fixture
def app(rabbitmq_url: str) -> Iterator[Celery]:
    """An app on the server that all tests share."""
    with _app(rabbitmq_url) as app:
        yield app


@contextmanager
def _app(url: str) -> Iterator[Celery]:
    """Make an app with one queue, which creates no others."""
    name = unique("relay")
    app = Celery(broker=url, set_as_current=False)
    app.conf.update(task_default_queue=name, task_queues=[Queue(name)], task_create_missing_queues=False)
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_declare(name, durable=True, auto_delete=False)
        yield app
        channel.queue_delete(name)
        channel.exchange_delete(name)


@pytest.fixture
def deployed(app: Celery) -> Iterator[Deployed]:
    """Make deployments over the app."""
    with ExitStack() as made:
        yield lambda with_pipeline: made.enter_context(closing(Deployment(app, with_pipeline)))


def test_a_row_that_cannot_be_written_doubles_no_other(deployed: Deployed) -> None:
    """A mistyped queue, in the middle of a batch."""
    deployment = deployed(True)
    before, after = [f"before {number}" for number in range(20)], [f"after {number}" for number in range(20)]
    deployment.add(*before)
    deployment.add("bad", queue="mistyped")
    deployment.add(*after)

    deployment.sweep_for(1)

    assert deployment.arrived() == Counter([*before, *after])
    deployment.sweep_for(10)
    assert deployment.arrived() == Counter()
    assert [letter.message_id for letter in deployment.backend.dead.list(10)] == ["bad"]
    assert deployment.backend.outbox.count() == 0


@pytest.mark.parametrize("with_pipeline", [False, True], ids=["one by one", "at once"])
def test_rows_over_which_the_broker_ends_the_connection_hold_up_no_other(deployed: Deployed, with_pipeline: bool) -> None:
    """A header that is no number; they become dead letters, and nothing else does."""
    deployment = deployed(with_pipeline)
    good = [f"good {number}" for number in range(10)]
    deployment.add("bad", "worse", "worst", headers={"weight": float("nan")})
    deployment.add(*good)

    deployment.sweep_for(int(TERMS.lease_s) + 1)
    deployment.add("late")
    deployment.sweep_for(130)

    assert set(deployment.arrived()) == {*good, "late"}
    assert {letter.message_id for letter in deployment.backend.dead.list(10)} == {"bad", "worse", "worst"}
    assert deployment.backend.outbox.count() == 0


@pytest.mark.parametrize("with_pipeline", [False, True], ids=["one by one", "at once"])
def test_a_full_queue_holds_up_no_other(app: Celery, deployed: Deployed, with_pipeline: bool) -> None:
    """Each good row arrives once."""
    deployment = deployed(with_pipeline)
    full = unique("full")
    limits = {"x-max-length": 0, "x-overflow": "reject-publish"}
    app.amqp.queues.add(Queue(full, queue_arguments=limits))
    deployment.add("bad", "worse", "worst", queue=full)
    deployment.add("a", "b", "c")

    deployment.sweep_for(10)

    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(full)
    assert deployment.arrived() == Counter("abc")
    assert {letter.message_id for letter in deployment.backend.dead.list(10)} == {"bad", "worse", "worst"}


def test_a_broker_without_memory_counts_against_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not against one that has failed before, and is alone: there are connections, and no message is taken."""
    monkeypatch.setattr(publisher, "DEADLINE_S", 0.3)
    with rabbitmq_servers.running() as server, _app(server.url) as app, closing(Deployment(app, False)) as deployment:
        deployment.add("good")
        (row,) = deployment.backend.outbox.claim_due("another relay", 1, 1_000)
        deployment.backend.outbox.fail("another relay", row.id, "once", 0)
        server.limit_memory("absolute", "1")

        deployment.sweep_for(300)

        assert "timed out" in deployment.relay.tally.last_error
        deployment.clock.advance(60_000)
        (row,) = deployment.backend.outbox.claim_due("another relay", 1, 60_000)
        assert row.attempts == 1
        deployment.backend.outbox.release("another relay", [row.id])
        server.limit_memory("0.6")
        deployment.sweep_for(61)
        assert deployment.backend.outbox.count() == 0
        assert set(deployment.arrived()) == {"good"}
        assert deployment.backend.dead.list(10) == []
