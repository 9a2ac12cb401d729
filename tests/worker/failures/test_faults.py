"""Whose fault it is: all that Celery alone fails over is found in the message, and nothing in those that Celery itself sends."""

import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery, signature
from celery.exceptions import TaskRevokedError
from celery.worker import state
from celery.worker.consumer import Consumer
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message
from kombu.utils.json import dumps

from celery_sagas.worker.failures.faults import UNREADABLE, fault_of
from celery_sagas.worker.failures.requests import keeping_failures
from tests.integration.forging import CELERY, Forged, forged
from tests.worker.test_forged_headers import ANYTHING

FORGED = 3_000
SEED = 10


#: Levels of lists, which no pool of processes gets; Python before 3.13 does not decode them either.
TOO_DEEP = b"[[" + b"[" * 6_000 + b"]" * 6_000 + b"], {}, {}]"


def delivered(forged: Forged) -> Message:
    """Return a message as kombu delivers it."""
    return Message(
        forged.body,
        content_type=forged.content_type,
        content_encoding=forged.content_encoding,
        headers=forged.headers,
        properties=forged.properties,
        channel=Mock(no_ack_consumers=None),
        delivery_tag="t",
        accept={"application/json"},
    )


@pytest.fixture
def receive(app: Celery) -> Iterator[Callable[[Message], None]]:
    """Return what Celery does with a message until its task runs, events and results included; nothing is logged."""

    @app.task(name="forged.work", shared=False)
    def work(*_: Any, **__: Any) -> None: ...

    app.finalize()
    task: Any = app.tasks["forged.work"]
    task.Request = keeping_failures(task.Request)
    dispatcher = SimpleNamespace(enabled=True, send=lambda _type, **fields: dumps(fields))
    consumer: Any = Mock(
        app=app,
        hostname="w",
        event_dispatcher=dispatcher,
        connection_errors=(),
        disable_rate_limits=True,
        task_buckets={},
        on_task_message=(),
        _maximum_prefetch_restored=True,
    )
    consumer.controller.state = state
    consumer.call_soon = consumer.call_soon_ack = lambda call, *given, **options: call(*given, **options)
    consumer.pool.apply_async = hand_over
    consumer.on_task_request = lambda request: run(request, consumer.pool)
    for name in ("on_unknown_message", "on_unknown_task", "on_invalid_task", "on_decode_error", "_message_report"):
        setattr(consumer, name, partial(getattr(Consumer, name), consumer))
    task.send_events = True
    consumer.strategies = {"forged.work": task.start_strategy(app, consumer)}
    logging.disable()
    yield Consumer.create_task_handler(consumer)
    logging.disable(logging.NOTSET)
    for known in (state.requests, state.reserved_requests, state.active_requests, state.revoked):
        known.clear()


def hand_over(_trace: Any, args: Any, **_: Any) -> None:
    """Do what a pool of processes does with a message in its main process."""
    pickle.dumps(args)


def run(request: Any, pool: Any) -> None:
    with suppress(TaskRevokedError):
        request.execute_using_pool(pool)


def test_whatever_celery_fails_over_is_found(receive: Callable[[Message], None]) -> None:
    chance, failed = Random(SEED), set()
    for _ in range(FORGED):
        message = delivered(made := forged(chance))
        if message.errors:
            continue
        try:
            receive(message)
        except UNREADABLE as exc:
            failed.add(type(exc))
            assert fault_of(message) is not None, made
    assert len(failed) > 3


def test_expired_message_ends_whatever_follows_it(receive: Callable[[Message], None]) -> None:
    """Of a chord that is none: it would not run anyway."""
    expired = {"task": "forged.work", "id": "m1", "expires": "2020-01-01T00:00:00", "group": ["a"]}
    message = delivered(Forged(expired, b'[[], {}, {"chord": 5}]'))

    receive(message)

    assert message.acknowledged


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eta": datetime(2026, 1, 1, tzinfo=UTC), "expires": 60.5},
        {"countdown": 5, "priority": 9, "time_limit": 5, "soft_time_limit": 0.5, "shadow": "other"},
        {"link": signature("a"), "link_error": "b"},
        {"link": signature("a"), "link_error": signature("b"), "chain": [signature("c")], "retries": 3, "ignore_result": True},
        {"group_id": "g1", "group_index": 1, "chord": signature("d"), "root_id": "r1", "parent_id": "p1", "reply_to": "q1"},
        {"stamped_headers": ["stamp"], "stamp": ["x"], "headers": {"get": 1, "tenant": {"a": [None]}}, "compression": "zlib"},
        {"task_id": "ä" * 400 + " \n"},
    ],
    ids=lambda options: ", ".join(options),
)
def test_what_celery_sends_is_without_fault(app: Celery, protocol: int, options: dict[str, Any]) -> None:
    app.conf.task_protocol = protocol
    app.send_task("work", ["a", 5], {"name": None}, **options)

    with app.connection_for_read() as connection, connection.SimpleQueue(app.conf.task_default_queue) as queue:
        message = queue.get_nowait()
        message.ack()
    assert fault_of(message) is None


@pytest.mark.parametrize(
    "made",
    [
        Forged({"task": "a", "id": "1", "eta": "9999-12-31T23:59:59"}, b"[[], {}, {}]"),
        Forged({"task": "a", "id": "1", "expires": "0001-01-01T00:00:00+14:00"}, b"[[], {}, {}]"),
        Forged({"task": "a", "id": "1", "eta": 5}, b"[[], {}, {}]"),
        Forged({"task": "a", "id": ""}, b"[[], {}, {}]"),
        Forged({"task": "a", "id": "\ud800"}, b"[[], {}, {}]"),
        Forged({"task": "a", "id": "1"}, b"[[], {}, {}]", properties={"reply_to": "\0"}),
        Forged({"task": "a", "id": "1"}, TOO_DEEP),
        Forged({"task": "a", "id": "1"}, b"[["),
        Forged({}, b'{"args": 5, "kwargs": 5}'),
        Forged({}, b"5"),
    ],
    ids=lambda made: f"{made.headers} {made.body[:20]}",
)
def test_fault(made: Forged) -> None:
    assert fault_of(delivered(made)) is not None


@given(
    headers=st.dictionaries(st.sampled_from(CELERY), ANYTHING) | ANYTHING,
    properties=st.dictionaries(st.sampled_from(["reply_to", "correlation_id", "priority"]), ANYTHING) | ANYTHING,
    payload=st.tuples(ANYTHING, ANYTHING, ANYTHING) | st.dictionaries(st.sampled_from(CELERY), ANYTHING) | ANYTHING,
)
def test_any_message_is_checked(headers: Any, properties: Any, payload: Any) -> None:
    """No header, property or body raises anything there."""
    message = SimpleNamespace(
        **{"headers": headers, "properties": properties, "payload": payload, "delivery_info": properties},
        **{"body": b"", "content_type": "application/json", "content_encoding": "utf-8"},
    )
    fault_of(message)
