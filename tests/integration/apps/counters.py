"""Counters, and tallies that are told of every increment."""

import os
import time

from celery.exceptions import SoftTimeLimitExceeded
from deployed import make_app

from celery_sagas import Saga
from celery_sagas.engine import waves

app = make_app()
#: For a test that is not about slow handlers, on a busy machine.
if patience_s := os.environ.get("CELERY_SAGAS_TEST_PATIENCE"):
    waves.BATCH_S = waves.SLOW_S = float(patience_s)


class Counter(Saga, correlate_by="name"):
    name: str
    value: int = 0
    count: int = 0


class Tally(Saga, correlate_by="name"):
    name: str
    value: int = 0
    count: int = 0


@Counter.starts
def add(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.count += 1


@Counter.starts
def add_and_tell(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.count += 1
    counter.send(told.si(name=name, amount=amount))


@Counter.handles
def finish(counter: Counter, name: str) -> None:
    counter.send(told.si(name=name, amount=counter.value))
    counter.complete()


@Tally.starts
def told(tally: Tally, name: str, amount: int) -> None:
    tally.value += amount
    tally.count += 1


@Counter.starts(soft_time_limit=1, autoretry_for=(SoftTimeLimitExceeded,), max_retries=None, default_retry_delay=0)
def add_within_a_second(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.count += 1


@Counter.starts(time_limit=1)
def linger_and_tell(counter: Counter, name: str, amount: int, seconds: float) -> None:
    time.sleep(seconds)
    counter.value += amount
    counter.count += 1
    counter.send(told.si(name=name, amount=amount))
