"""Sagas that ask plain tasks, which answer or fail in every way."""

import time
from datetime import timedelta
from typing import Any

from celery import Celery, chain
from deployed import FOLDER, make_app, note
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
def ask_slowly(quest: Quest, name: str) -> None:
    """Tell the request's id, and commit once the test says so."""
    note("asks", quest.send(work.s(name), then=answered, otherwise=failed))
    while not (FOLDER / "commit").exists():
        time.sleep(0.02)


def asked_for(name: str, how: str) -> Any:
    """Return one task, or a chain of several, whose names are given with a comma between them; each takes one argument."""
    first, *rest = (app.signature(f"participant.{each}") for each in how.split(", "))
    return chain(first.clone(args=(name,)), *rest) if rest else first.clone(args=(name,))


@Quest.starts
def ask_chain(quest: Quest, name: str, how: str) -> None:
    quest.send(asked_for(name, how), then=answered, otherwise=failed)


@Quest.starts
def ask_all_ways(quest: Quest, name: str, hows: list[str], at_least: int, within: float) -> None:
    members = [asked_for(name, how) for how in hows]
    quest.gather(members, then=enough_answered, otherwise=too_few_answered, at_least=at_least, within=timedelta(seconds=within))


@Quest.starts
def ask_in_vain(quest: Quest, name: str) -> None:
    """Send what has expired already."""
    quest.send(work.s(name).set(expires=-1), then=answered, otherwise=failed)


@Quest.starts
def ask_nobody(quest: Quest, name: str) -> None:
    """Send to a queue that is not there."""
    quest.send(work.s(name).set(queue="nowhere"), then=answered, otherwise=failed)


@Quest.starts
def ask_unbound(quest: Quest, name: str) -> None:
    """Send to an exchange to which no queue is bound."""
    quest.send(work.s(name).set(exchange="amq.topic", routing_key="to.nobody"), then=answered, otherwise=failed)


@Quest.starts
def ask_often(quest: Quest, name: str, times: int) -> None:
    for number in range(times):
        quest.send(work.s(f"{name}-{number}"), then=answered, otherwise=failed, within=timedelta(hours=1))


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
def ask_sagas_that_ask_many(quest: Quest, name: str, sagas: int, members: int) -> None:
    """Gather the answers of sagas that gather others' answers."""
    quest.gather([scout.s(f"{name}-{number}", members) for number in range(sagas)], then=enough_answered)


@Quest.starts
def begin(quest: Quest, name: str) -> None:
    """Begin what calls ``heard`` in many ways, and knows no key."""
    quest.send(spread.s())


@Quest.handles
def heard(quest: Quest, what: str) -> None:
    quest.answers.append(what)


@Quest.handles
def answered(quest: Quest, answer: str) -> None:
    quest.answers.append(answer)
    quest.late += quest.saga.message.late


@Quest.handles
def failed(quest: Quest, failure: Failure) -> None:
    quest.failures.append(f"{failure.kind} {failure.error}".strip())


@Quest.handles
def all_answered(quest: Quest, gathered: Gathered[str]) -> None:
    quest.gathered += len(gathered.answers)
    quest.failures += [failure.kind for failure in gathered.failures.values()]


@Quest.handles
def enough_answered(quest: Quest, gathered: Gathered[str]) -> None:
    quest.answers += [f"{position}: {answer}" for position, answer in gathered.answers.items()]
    quest.failures += [f"{position}: {failure.kind} {failure.error}" for position, failure in gathered.failures.items()]
    quest.failures += [f"{position}: silent" for position in gathered.silent]
    quest.gathered += 1


@Quest.handles
def too_few_answered(quest: Quest, gathered: Gathered[str]) -> None:
    quest.failures.append(f"too few: {len(gathered.answers)} of {gathered.members}")
    quest.gathered += 1


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


class Party(Saga, correlate_by="name"):
    """A saga that answers once everybody whom it has asked has answered."""

    name: str


@Party.starts
def scout(party: Party, name: str, members: int) -> None:
    party.gather([work.s(f"{name}-{number}") for number in range(members)], then=all_back)


@Party.handles
def all_back(party: Party, gathered: Gathered[str]) -> None:
    party.reply(f"{party.name}: {len(gathered.answers)} of {gathered.members}")
    party.complete()
