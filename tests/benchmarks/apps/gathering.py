"""A saga that gathers answers, and tasks that nobody waits for."""

import time
from typing import Any

from deployed import make_app, note

from celery_sagas import Gathered, Saga

app: Any = make_app()


class Asker(Saga, correlate_by="name"):
    name: str


@Asker.starts
def ask(asker: Asker, name: str, members: int) -> None:
    asker.gather([answer.s(f"{name} members", number) for number in range(members)], then=all_answered)


@Asker.handles
def all_answered(asker: Asker, gathered: Gathered[int]) -> None:
    assert gathered.values == list(range(gathered.members))
    note(asker.name, f"{time.time()}")
    asker.complete()


@app.task(acks_late=True, ignore_result=True)
def answer(name: str, number: int) -> int:
    note(name, f"{time.time()}")  # as the plain task does
    return number


@app.task(acks_late=True, ignore_result=True, name="gathering.publish")
def publish(name: str, members: int) -> None:
    """Publish as many tasks, from a worker as the gather's step does."""
    for _ in range(members):
        plain.delay(name)


@app.task(acks_late=True, ignore_result=True, name="gathering.plain")
def plain(name: str) -> None:
    note(name, f"{time.time()}")
