"""Messages per second that a relay publishes, against a loop of ``apply_async``: same task, same broker."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from celery import Celery

from celery_sagas.engine.relay import Relay
from celery_sagas.stores.records import Effects, Entry, Outgoing
from celery_sagas.worker.process.relay import terms_of
from celery_sagas.worker.runtime import close_runtime, runtime_of
from celery_sagas.worker.serialization import serialized
from tests import servers
from tests.benchmarks.conftest import Report
from tests.benchmarks.rates import in_turn, middle, ratio

MESSAGES = 1_000
#: A relay's rate as a part of the loop's, at least.
TARGET = 0.8
#: Rows of one commit at most.
_ROWS = 500


@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
@pytest.mark.parametrize("backend", ["redis", "postgresql"])
def test_a_relay_against_a_loop(request: pytest.FixtureRequest, report: Report, broker: str, backend: str) -> None:
    urls = [str(request.getfixturevalue(f"{name}_url")) for name in (broker, backend)]
    with _app(*urls) as app:
        loop, relayed = in_turn([lambda: _rate(app, _loop), lambda: _rate(app, _relay)])
    reached = ratio(relayed, loop)
    report(
        f"relay against a loop of apply_async, {broker} broker, {backend}",
        f"{reached:.2f}  ({middle(relayed)} of {middle(loop)} /s)",
        f">= {TARGET:.2f}",
        reached >= TARGET,
    )


def _rate(app: Celery, publish: Callable[[Celery], float]) -> float:
    """Return the messages per second; the queue is as long each time."""
    with app.connection_for_write() as connection, connection.channel() as channel:
        app.amqp.queues[app.conf.task_default_queue].bind(channel).declare()
        channel.queue_purge(app.conf.task_default_queue)
    return MESSAGES / publish(app)


def _loop(app: Celery) -> float:
    task = app.tasks["count"]
    task.apply_async(("name", 0))
    began = time.perf_counter()
    for number in range(MESSAGES):
        task.apply_async(("name", number))
    return time.perf_counter() - began


def _relay(app: Celery) -> float:
    runtime = runtime_of(app)
    relay = Relay(runtime.backend, runtime.publisher, lambda _: True, terms_of(runtime, runtime.backend))
    _commit(app, 2)
    relay.sweep()
    _commit(app, MESSAGES)
    began = time.perf_counter()
    sweep = relay.sweep()
    took = time.perf_counter() - began
    assert (sweep.sent, sweep.error) == (MESSAGES, "")
    return took


def _commit(app: Celery, count: int) -> None:
    """Leave messages in the outbox, as workers do that die after their commits."""
    for start in range(0, count, _ROWS):
        attempt = str(uuid4())
        rows = [_row(app, attempt, number) for number in range(start, min(start + _ROWS, count))]
        entry = Entry("counter.add", attempt, attempt, "handled", "counter", "a", "", 0, "{}")
        runtime_of(app).backend.sagas.record(Effects(entry, tuple(rows), "of the dead", 0))


def _row(app: Celery, attempt: str, number: int) -> Outgoing:
    message = serialized(app, app.tasks["count"].si("name", number), lambda: str(uuid4()), 10_000)
    return Outgoing(f"{attempt}-{number:05}", "sent", message.message_id, message.task, message.payload)


def _count(name: str, amount: int) -> None:
    """Do nothing: nobody consumes."""


@contextmanager
def _app(broker: str, backend: str) -> Iterator[Celery]:
    app = Celery(servers.unique("app"), broker=broker, set_as_current=True)
    app.conf.update(saga_backend=backend, task_default_queue=servers.unique("relayed"))
    app.task(_count, name="count", ignore_result=True)
    app.finalize()
    runtime_of(app).prepare(processes=1)
    yield app
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(app.conf.task_default_queue)
        channel.exchange_delete(app.conf.task_default_queue)
    close_runtime(app)
    app.close()
