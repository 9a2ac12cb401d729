"""Sagas that ask plain tasks, which answer or fail in every way."""

from datetime import timedelta

from celery import Celery
from deployed import make_app
from participants import spread, tell_id, work

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


@Quest.starts
def ask_twice(quest: Quest, name: str) -> None:
    quest.send(tell_id.s(name), then=ask_again, otherwise=failed)


@Quest.handles
def ask_again(quest: Quest, answer: str) -> None:
    quest.answers.append(answer)
    quest.send(tell_id.s(f"{quest.name} again"), then=answered, otherwise=failed)


@Quest.starts
def ask_saga_and_others(quest: Quest, name: str) -> None:
    quest.gather([set_out.s(name), work.s(name), set_out.s(f"another {name}")], then=all_answered)


@Quest.starts
def begin(quest: Quest, name: str) -> None:
    """Begin what calls ``heard`` in many ways, and knows no key."""
    quest.send(spread.s())


@Quest.handles
def heard(quest: Quest, what: str) -> None:
    quest.answers.append(what)


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
