"""Acknowledging many messages at once."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection
from kombu.transport.redis import Channel

from celery_sagas.worker.batches import acknowledging
from celery_sagas.worker.batches.acknowledging import acknowledge_all
from tests.servers import unique
from tests.worker.consumers import Consumer, Request


@pytest.fixture
def channel(redis_url: str) -> Iterator[Channel]:
    """A channel to a real server."""
    with Connection(redis_url) as connection, connection.channel() as channel:
        yield channel


def received(channel: Channel, count: int) -> list[Request]:
    """Return the requests of messages that were received and not acknowledged."""
    queue = unique("acknowledged")
    channel.queue_declare(queue)
    requests = []
    for number in range(count):
        channel.basic_publish(channel.prepare_message("{}"), "", queue)
        requests.append(Request(number))
        requests[-1].message = channel.basic_get(queue)
    return requests


def unacknowledged(channel: Channel) -> tuple[int, int]:
    with channel.conn_or_acquire() as client:
        return client.hlen(channel.unacked_key), client.zcard(channel.unacked_index_key)


def test_messages_on_redis_are_acknowledged_together(channel: Channel) -> None:
    requests = received(channel, 3)
    assert unacknowledged(channel) == (3, 3)
    acknowledge_all(Consumer(), requests[:2])
    assert unacknowledged(channel) == (1, 1)
    assert all(request.acknowledged and request.message.acknowledged for request in requests[:2])
    channel.qos.restore_unacked()
    assert unacknowledged(channel) == (0, 0)


def test_an_acknowledged_message_is_left_out(channel: Channel) -> None:
    requests = received(channel, 3)
    requests[1].acknowledged = True
    acknowledge_all(Consumer(), requests)
    assert unacknowledged(channel) == (1, 1)
    requests[1].message.ack()


def test_a_lost_connection_is_logged(channel: Channel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker delivers the messages again."""

    def fail(*_: Any) -> Any:
        raise ConnectionResetError

    requests = received(channel, 2)
    with monkeypatch.context() as patch, caplog.at_level(logging.CRITICAL, "celery_sagas"):
        patch.setattr(channel, "conn_or_acquire", fail)
        acknowledge_all(Consumer(), requests)
    assert "Couldn't ack 2 messages" in caplog.text
    for request in requests:
        request.message.ack()


def test_other_brokers_get_each_acknowledgement() -> None:
    requests = [Request(0), Request(1)]
    acknowledge_all(Consumer(), requests)
    assert [request.acks for request in requests] == [1, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_with_amqp_they_are_sent_together(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by itself would wake the broker."""
    requests, sent = [Request(0), Request(1)], list[object]()
    monkeypatch.setattr(acknowledging, "hold_packets", lambda *call: sent.append(call))
    for request in requests:
        request.message.channel = SimpleNamespace(connection=SimpleNamespace(sock="the socket"))
        monkeypatch.setattr(request.message, "ack_log_error", lambda *_: 1 / 0 if fails else sent.append("ack"))
    with suppress(ZeroDivisionError):
        acknowledge_all(Consumer(), requests)
    assert sent == [("the socket", True), *([] if fails else ["ack", "ack"]), ("the socket", False)]


def test_acknowledgements_wait_for_no_other_message_where_there_is_no_event_loop() -> None:
    """There, Celery from 5.7 on acknowledges at once, and leaves to the next turn of its loop what else is to be called soon."""
    consumer, requests = Consumer(), [Request(0), Request(1)]
    consumer.call_soon_ack, consumer.call_soon = consumer.call_soon, lambda *_: None  # type: ignore[attr-defined]
    acknowledge_all(consumer, requests)
    assert [request.acks for request in requests] == [1, 1]


@pytest.mark.parametrize(("is_restored", "calls"), [(False, 0), (True, 1)])
def test_each_restores_the_prefetch_count_after_a_lost_connection(is_restored: bool, calls: int) -> None:
    consumer, requests, soon = Consumer(), [Request(0), Request(1)], []
    consumer.restart_count = 1
    consumer._maximum_prefetch_restored = is_restored  # type: ignore[attr-defined]
    consumer.call_soon = lambda call, *args: soon.append(call)
    acknowledge_all(consumer, requests)
    assert (len(soon), [request.acknowledged for request in requests]) == (calls, [True, True])
    assert [request.acks for request in requests] == ([0, 0] if is_restored else [1, 1])
