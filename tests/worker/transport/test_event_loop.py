"""Receiving in the turns of an event loop, as a worker with a pool of processes does."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kombu.asynchronous import Hub

from tests.waiting import DEADLINE_S, wait_until
from tests.worker.transport.conftest import Consume, Consumer, Queue

Turn = Callable[[Consumer], Any]


@pytest.fixture
def looping() -> Iterator[Turn]:
    """Return a function that has a consumer receive in an event loop, and returns the loop."""
    with ExitStack() as closing:

        def register(consumer: Consumer) -> Any:
            closing.callback((hub := Hub()).close)
            hub.propagate_errors = consumer.connection.connection_errors
            consumer.connection.register_with_event_loop(hub)
            return hub

        yield register


def turn_until(loop: Any, condition: Callable[[], Any], what: str) -> None:
    """Let an event loop turn until a condition holds."""
    wait_until(lambda: loop.run_once() or condition(), what, DEADLINE_S)


def receive(loop: Any, consumer: Consumer, count: int) -> list[str]:
    """Let a consumer receive until it has got so many messages in all; return their bodies."""
    turn_until(loop, lambda: len(consumer.got) >= count, f"{count} messages")
    return consumer.bodies


@pytest.mark.parametrize("of", ["_commands", "_invalidations"])
def test_connection_of_the_receiver_that_is_killed_is_opened_again(
    queue: Queue, consume: Consume, looping: Turn, of: str
) -> None:
    """Also where kombu stops to receive when it loses a connection of its own: before 5.7."""
    consumer = consume()
    loop = looping(consumer)
    queue.publish("a")
    receive(loop, consumer, 1)
    killed = consumer.channel.receiver
    killed.opened_at = 0
    queue.client.client_kill_filter(_id=client_id(queue, getattr(killed, of)))
    turn_until(loop, lambda: consumer.channel.receiver is not killed, "another receiver")
    queue.publish("b")
    assert receive(loop, consumer, 2) == ["a", "b"]
    assert queue.unacknowledged() == (2, 2)


def test_event_loop_turns_as_often_as_the_lists_are_read_in_any_case(queue: Queue, consume: Consume, looping: Turn) -> None:
    """Until the connection is closed."""
    consumer = consume()
    loop = looping(consumer)
    consumer.connection.register_with_event_loop(loop)
    cycle = consumer.connection.transport.cycle
    assert len(timers(loop, cycle.wake)) == 1
    consumer.connection.close()
    assert timers(loop, cycle.wake) == []


def timers(loop: Any, repeated: Callable[[], Any]) -> list[Any]:
    """Return the timers of an event loop that call a function again and again."""
    entries = (scheduled.entry for scheduled in loop.timer.queue)
    return [entry for entry in entries if not entry.canceled and getattr(entry.fun, "__wrapped__", None) == repeated]


def client_id(queue: Queue, connection: Any) -> Any:
    """Return the number that the server has given to a connection."""
    host, port = connection._sock.getsockname()
    (number,) = (client["id"] for client in queue.client.client_list() if client["addr"] == f"{host}:{port}")
    return number
