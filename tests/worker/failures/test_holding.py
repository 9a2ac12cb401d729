"""What a worker's main process holds: it gets other messages meanwhile, and asks a store that has failed more and more seldom."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from kombu.common import QoS

from celery_sagas.worker.failures import redelivery
from celery_sagas.worker.failures.redelivery import Hold

PREFETCHED = 2


class Clock:
    """A clock that the test sets. Seconds."""

    now = 1_000.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(redelivery, "time", made := Clock())
    return made


class Consumer:
    """A worker's consumer, as far as it holds messages, with or without an event loop."""

    connection_errors = ()

    def __init__(self, app: Celery, *, hub: bool) -> None:
        self.app, self.hub, self.timer = app, hub, self
        self.told: list[int] = []
        self.connect()
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def connect(self) -> None:
        """Have a connection of its own."""
        self.qos = QoS(lambda prefetch_count: self.told.append(prefetch_count), PREFETCHED)
        self.qos.update()

    def call_after(self, seconds: float, call: Any, args: Any = ()) -> None:
        """Set a timer."""
        self.timers.append((seconds, lambda: call(*args)))

    def call_soon(self, call: Any) -> None:
        """Call at once."""
        call()


def test_pauses_are_longer_each_time_until_the_store_serves(app: Celery, clock: Clock) -> None:
    hold = Hold(Consumer(app, hub=False))
    assert not hold.lasts
    assert [hold.begin() for _ in range(3)] == [3, 6, 12]
    assert hold.lasts
    clock.now += 12
    assert not hold.lasts

    hold.end()

    assert hold.begin() == 3


@pytest.mark.parametrize("hub", [True, False])
def test_held_message_makes_room_for_another(app: Celery, clock: Clock, hub: bool) -> None:
    hold, message = Hold(consumer := Consumer(app, hub=hub)), Mock()
    hold.begin()
    clock.now += 1

    hold.hold(message)

    assert consumer.qos.value == PREFETCHED + 1
    (seconds, requeue), *rest = consumer.timers
    assert [seconds for seconds, _ in rest] == [0] * hub
    for _, prefetch in rest:
        prefetch()
    assert consumer.told == [PREFETCHED] + [PREFETCHED + 1] * hub
    assert (seconds, message.reject_log_error.called) == (2, False)
    requeue()
    assert message.reject_log_error.call_args.kwargs == {"requeue": True}
    assert consumer.qos.value == PREFETCHED


def test_message_of_a_lost_connection_is_none_of_the_next(app: Celery, clock: Clock) -> None:
    hold = Hold(consumer := Consumer(app, hub=True))
    hold.begin()
    hold.hold(Mock())
    consumer.connect()

    for _, call in consumer.timers:
        call()

    assert (consumer.qos.value, consumer.told) == (PREFETCHED, [PREFETCHED] * 2)
