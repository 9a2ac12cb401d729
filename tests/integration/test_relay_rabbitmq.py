"""A relay over RabbitMQ, on a clock of the test: rows that the broker does not take, among rows that it does."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from celery import Celery
from kombu import Queue

from celery_sagas.worker.publishing import amqp, open_publisher, publisher
from tests import rabbitmq_servers
from tests.integration.sweeping import TERMS, Deployment
from tests.servers import unique

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
        yield lambda in_batches: made.enter_context(closing(Deployment(app, in_batches=in_batches)))


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
    assert [dead_letter.message_id for dead_letter in deployment.backend.dead.list(10)] == ["bad"]
    assert deployment.backend.outbox.count() == 0


@pytest.mark.parametrize("in_batches", [False, True], ids=["one by one", "at once"])
def test_rows_over_which_the_broker_ends_the_connection_hold_up_no_other(deployed: Deployed, in_batches: bool) -> None:
    """A header that is no number; they become dead letters, and nothing else does."""
    deployment = deployed(in_batches)
    good = [f"good {number}" for number in range(10)]
    deployment.add("bad", "worse", "worst", headers={"weight": float("nan")})
    deployment.add(*good)

    deployment.sweep_for(int(TERMS.lease_s) + 1)
    deployment.add("late")
    deployment.sweep_for(130)

    assert set(deployment.arrived()) == {*good, "late"}
    assert {dead_letter.message_id for dead_letter in deployment.backend.dead.list(10)} == {"bad", "worse", "worst"}
    assert deployment.backend.outbox.count() == 0


@pytest.mark.parametrize("in_batches", [False, True], ids=["one by one", "at once"])
def test_a_full_queue_holds_up_no_other(app: Celery, deployed: Deployed, in_batches: bool) -> None:
    """Each good row arrives once."""
    deployment = deployed(in_batches)
    full = unique("full")
    limits = {"x-max-length": 0, "x-overflow": "reject-publish"}
    app.amqp.queues.add(Queue(full, queue_arguments=limits))
    deployment.add("bad", "worse", "worst", queue=full)
    deployment.add("a", "b", "c")

    deployment.sweep_for(10)

    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(full)
    assert deployment.arrived() == Counter("abc")
    assert {dead_letter.message_id for dead_letter in deployment.backend.dead.list(10)} == {"bad", "worse", "worst"}


@pytest.mark.parametrize("in_batches", [False, True], ids=["one by one", "at once"])
def test_rows_that_no_queue_takes_hold_up_no_other(deployed: Deployed, in_batches: bool) -> None:
    """Each good row arrives once; the others become dead letters that name the route."""
    deployment = deployed(in_batches)
    deployment.add("bad", "worse", exchange="amq.topic", routing_key="to.nobody")
    deployment.add("a", "b", "c")

    deployment.sweep_for(10)

    assert deployment.arrived() == Counter("abc")
    dead_letters = deployment.backend.dead.list(10)
    assert {dead_letter.message_id for dead_letter in dead_letters} == {"bad", "worse"}
    assert {dead_letter.error for dead_letter in dead_letters} == {"Unroutable"}
    assert all("to.nobody" in dead_letter.text for dead_letter in dead_letters)
    assert deployment.backend.outbox.count() == 0


def test_a_broker_without_memory_counts_against_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not against one that has failed before, and is alone: there are connections, and no message is taken."""
    for module in (publisher, amqp):
        monkeypatch.setattr(module, "DEADLINE_S", 0.3)
    with (
        rabbitmq_servers.running() as server,
        _app(server.url) as app,
        closing(Deployment(app)) as deployment,
    ):
        deployment.add("good")
        (row,) = deployment.backend.outbox.claim_due("another relay", 1, 1_000)
        deployment.backend.outbox.fail("another relay", row.id, "once", 0)
        server.limit_memory("absolute", "1")

        deployment.sweep_for(int(TERMS.lease_s) + 10)  # long past the retry of a row that has failed

        assert "timed out" in deployment.relay.tally.last_error
        deployment.clock.advance(60_000)
        (row,) = deployment.backend.outbox.claim_due("another relay", 1, 60_000)
        assert row.attempts == 1
        deployment.backend.outbox.release("another relay", [row.id])
        server.limit_memory("0.6")
        monkeypatch.undo()
        deployment.publisher.close()
        deployment.publisher = deployment.relay.publisher = open_publisher(app)
        deployment.sweep_for(61)
        assert deployment.backend.outbox.count() == 0
        assert set(deployment.arrived()) == {"good"}
        assert deployment.backend.dead.list(10) == []
