"""Counters that tell a plain task: through the outbox, or past it."""

import timed as timed
from deployed import make_app

from celery_sagas import Saga

app = make_app()


class Counter(Saga, correlate_by="name"):
    name: str
    value: int = 0


@app.task(name="told", ignore_result=True)
def told(name: str, amount: int) -> None:
    """Nobody handles it."""


@Counter.starts
def send(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.send(told.s(name, amount))


@Counter.starts
def delay(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    told.delay(name, amount)
