"""Acknowledging many messages: on Redis in one round trip, with AMQP in few packets."""

import logging
from collections.abc import Sequence
from typing import Any

from kombu.transport.virtual import QoS

from celery_sagas.connections import hold_packets

logger = logging.getLogger("celery_sagas")


def acknowledge_all(consumer: Any, requests: Sequence[Any]) -> None:
    """Acknowledge the messages of a consumer's requests, where and when Celery acknowledges one."""
    waiting = [request for request in requests if not request.acknowledged]
    if len(waiting) < 2 or not _may_be_together(consumer):
        for request in waiting:
            request.acknowledge()
        return
    for request in waiting:
        request.acknowledged = True
    # without an event loop, Celery before 5.7 leaves acknowledgements to the next turn of its loop, which waits for a message
    call_soon = getattr(consumer, "call_soon_ack", consumer.call_soon)
    call_soon(_acknowledge, [request.message for request in waiting], consumer.connection_errors)


def _may_be_together(consumer: Any) -> bool:
    """Return whether acknowledgements need no more than the broker's command.

    After a connection was lost, each raises the prefetch count, which Celery has reduced.
    """
    return not consumer.restart_count or getattr(consumer, "_maximum_prefetch_restored", False)


def _acknowledge(messages: Sequence[Any], connection_errors: tuple[type[BaseException], ...]) -> None:
    """Acknowledge messages; as with Celery's own, a lost connection is logged, and the messages are redelivered."""
    channel = messages[0].channel
    if not hasattr(getattr(channel, "qos", None), "unacked_index_key"):
        _acknowledge_one_by_one(channel, messages, connection_errors)
        return
    try:
        _acknowledge_on_redis(channel, messages)
    except connection_errors as exc:
        logger.critical("Couldn't ack %d messages, reason:%r", len(messages), exc, exc_info=True)


def _acknowledge_one_by_one(channel: Any, messages: Sequence[Any], connection_errors: tuple[type[BaseException], ...]) -> None:
    """Acknowledge each message by itself, as AMQP must, and send the acknowledgements together."""
    sock = getattr(getattr(channel, "connection", None), "sock", None)
    hold_packets(sock, True)
    try:
        for message in messages:
            message.ack_log_error(logger, connection_errors)
    finally:
        hold_packets(sock, False)


def _acknowledge_on_redis(channel: Any, messages: Sequence[Any]) -> None:
    """Remove messages from those that kombu notes as unacknowledged: see its ``QoS.ack``."""
    qos, tags = channel.qos, [message.delivery_tag for message in messages]
    if hasattr(channel, "ack_many"):
        channel.ack_many(tags)
    else:
        with channel.conn_or_acquire() as client:
            client.pipeline().zrem(qos.unacked_index_key, *tags).hdel(qos.unacked_key, *tags).execute()
        for tag in tags:
            QoS.ack(qos, tag)
    for message in messages:
        message._state = "ACK"
