"""Many consumers of a queue: those that others forestall wait a little, so that the server has less to do."""

import pytest
from kombu.asynchronous import Hub

from celery_sagas.worker.transport import receiver
from tests.waiting import DEADLINE_S
from tests.worker.transport.conftest import Consume, Consumer, Queue

#: Where an outcome depends on it, the lists are not read in any case.
NEVER_S = 3600.0


@pytest.fixture(autouse=True)
def _only_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("receiver", "transport"):
        monkeypatch.setattr(f"celery_sagas.worker.transport.{module}.RECHECK_S", NEVER_S)


def wait_each_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let a wait be this long, and no random part of it."""
    monkeypatch.setattr(receiver, "_STEP_S", seconds)
    monkeypatch.setattr(receiver, "_LONGEST_S", seconds)
    monkeypatch.setattr(receiver, "uniform", max)


def forestall(queue: Queue, consumer: Consumer, times: int) -> None:
    """Have the server tell a consumer of messages that others take."""
    consumer.channel.receive()
    for _ in range(times):
        tell(queue, consumer)
        queue.client.delete(queue.name)
        assert not consumer.channel.receive()


def tell(queue: Queue, consumer: Consumer) -> None:
    """Have the server tell a consumer of a message."""
    queue.publish("a")
    cycle = consumer.connection.transport.cycle
    ready = [fd for fd, _ in cycle.poller.poll(DEADLINE_S)]
    assert ready == [consumer.channel.receiver.filenos()[0]]
    cycle.on_readable(*ready)


def test_a_consumer_that_often_comes_too_late_waits_until_it_has_got_a_message(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_each_time(monkeypatch, NEVER_S)
    consumer = consume()
    forestall(queue, consumer, 1 + receiver._PATIENCE)
    tell(queue, consumer)
    assert consumer.drain_once() == []
    monkeypatch.undo()
    consumer.channel.receiver.looks_at = 0
    assert consumer.drain(1) == ["a"]
    wait_each_time(monkeypatch, NEVER_S)
    tell(queue, consumer)
    assert consumer.drain(2) == ["a", "a"]


def test_a_consumer_that_waits_looks_as_soon_as_the_wait_ends(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_each_time(monkeypatch, 0.05)
    consumer = consume()
    forestall(queue, consumer, 1 + receiver._PATIENCE)
    tell(queue, consumer)
    assert consumer.drain(1) == ["a"]


def test_an_event_loop_turns_when_the_wait_of_a_consumer_ends(
    queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_each_time(monkeypatch, 0.05)
    consumer = consume()
    forestall(queue, consumer, 1 + receiver._PATIENCE)
    cycle = consumer.connection.transport.cycle
    cycle.loop = hub = Hub()
    try:
        tell(queue, consumer)
        assert [timer.entry.fun for timer in hub.timer.queue] == [cycle.wake]
    finally:
        cycle.loop = None
        hub.close()


def test_a_consumer_alone_never_waits(queue: Queue, consume: Consume, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_each_time(monkeypatch, NEVER_S)
    consumer = consume(prefetch=1)
    consumer.on_message = lambda message: message.ack()
    for count in range(1, 20):
        queue.publish("a")
        assert len(consumer.drain(count)) == count
