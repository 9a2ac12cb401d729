"""Counters that tell a plain task: through the outbox, or past it."""

import timed as timed
from deployed import make_app

from celery_sagas import Failure, Saga

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
def ask(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.send(told.s(name, amount), then=answered, otherwise=failed, within=3600)


@Counter.handles
def answered(counter: Counter, answer: None) -> None:
    """Nobody answers."""


@Counter.handles
def failed(counter: Counter, failure: Failure) -> None:
    """Nobody fails."""


@Counter.starts
def delay(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    told.delay(name, amount)
