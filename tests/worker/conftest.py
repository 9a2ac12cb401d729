"""Every test here gets apps of its own, and nobody waits for a message that is held."""

import math
import time
from types import SimpleNamespace

import pytest

from celery_sagas.engine.outbox import confirmations
from celery_sagas.worker.failures import redelivery
from celery_sagas.worker.publishing import amqp, confirms, publisher
from celery_sagas.worker.publishing.amqp import AmqpPublisher
from celery_sagas.worker.publishing.redis import RedisPublisher
from celery_sagas.worker.requests import answers
from tests.apps import app, at_one_time, definitions, eager, new_app, worker
from tests.waiting import DEADLINE_S

__all__ = ["app", "at_one_time", "definitions", "eager", "held", "long_timeouts", "new_app", "waited", "worker"]


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which messages are held before the broker gets them back, which are not slept."""
    slept: list[float] = []
    monkeypatch.setattr(redelivery, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    return slept


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds before answers are published again, which are not slept: the clock goes on by them."""
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(answers, "time", clock)
    return slept


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is about to answer is waited for, however busy it is; and no connection has rested for long."""
    for module in (publisher, amqp, confirms):
        monkeypatch.setattr(module, "DEADLINE_S", DEADLINE_S)
    for module in (confirms, amqp):
        monkeypatch.setattr(module, "MESSAGE_DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr(confirmations, "SETTLED_IN_S", DEADLINE_S)
    monkeypatch.setattr(confirms, "RESTED_S", math.inf)
    for options in (AmqpPublisher.transport_options, RedisPublisher.transport_options):
        for name in options.keys() - {"confirm_publish"}:
            monkeypatch.setitem(options, name, DEADLINE_S)
