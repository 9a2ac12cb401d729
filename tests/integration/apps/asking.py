"""Sagas that ask plain tasks, which answer or fail in every way."""

import os
import time
from datetime import timedelta

from celery import Celery
from deployed import FOLDER, first_time, make_app, note

from celery_sagas import Failure, Gathered, Saga

app: Celery = make_app()


class Quest(Saga, correlate_by="name"):
    """A question, and everything that has come of it."""

    name: str
    answers: list[str] = []
    late: int = 0
    failures: list[str] = []
    gathered: int = 0


@Quest.starts
def ask(quest: Quest, name: str, how: str, within: float | None = None) -> None:
    signature = app.signature(f"participant.{how}", args=(name,))
    if within is None:
        quest.send(signature, then=answered, otherwise=failed)
    else:
        quest.send(signature, then=answered, otherwise=failed, within=timedelta(seconds=within))


@Quest.starts
def ask_in_vain(quest: Quest, name: str) -> None:
    """Send what has expired already."""
    quest.send(work.s(name).set(expires=-1), then=answered, otherwise=failed)


@Quest.starts
def ask_often(quest: Quest, name: str, times: int) -> None:
    for number in range(times):
        quest.send(work.s(f"{name}-{number}"), then=answered, otherwise=failed, within=timedelta(minutes=1))


@Quest.starts
def ask_saga(quest: Quest, name: str) -> None:
    quest.send(set_out.s(name), then=answered, otherwise=failed)


@Quest.starts
def ask_many(quest: Quest, name: str, members: int) -> None:
    quest.gather([work.s(f"{name}-{number}") for number in range(members)], then=all_answered)


@Quest.handles
def answered(quest: Quest, answer: str) -> None:
    assert quest.saga.message is not None
    quest.answers.append(answer)
    quest.late += quest.saga.message.late


@Quest.handles
def failed(quest: Quest, failure: Failure) -> None:
    quest.failures.append(f"{failure.kind} {failure.error}".strip())


@Quest.handles
def all_answered(quest: Quest, gathered: Gathered[str]) -> None:
    quest.gathered += len(gathered.answers)
    quest.failures += [failure.kind for failure in gathered.failures.values()]


class Errand(Saga, correlate_by="name"):
    """A saga that answers once it comes back."""

    name: str


@Errand.starts
def set_out(errand: Errand, name: str) -> None:
    errand.schedule(come_back.s(), after=0.1)


@Errand.handles
def come_back(errand: Errand) -> None:
    errand.reply(f"{errand.name} is back")
    errand.complete()


@app.task(name="participant.work", acks_late=True)
def work(name: str) -> str:
    return f"done {name}"


@app.task(name="participant.hold", acks_late=True)
def hold(name: str) -> str:
    """Answer once the test says so."""
    note("held", name)
    while not (FOLDER / "answer").exists():
        time.sleep(0.02)
    return f"done {name}"


@app.task(name="participant.fail", bind=True, autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0)
def fail(self: object, name: str) -> str:
    note("failed", name)
    raise ValueError("it does not work")


@app.task(name="participant.hang_softly", soft_time_limit=1)
def hang_softly(name: str) -> None:
    time.sleep(60)


@app.task(name="participant.hang", time_limit=1)
def hang(name: str) -> None:
    time.sleep(60)


@app.task(name="participant.crash")
def crash(name: str) -> None:
    os._exit(1)


@app.task(name="participant.crash_once", acks_late=True, reject_on_worker_lost=True)
def crash_once(name: str) -> str:
    """Die between the work and the answer, the first time."""
    note("worked", name)
    if first_time(name):
        os._exit(1)
    return f"done {name}"
