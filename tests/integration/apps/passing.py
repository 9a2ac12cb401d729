"""An aggregator that passes its items on to a saga, which notes each; a process may be killed around the removal of its items."""

from typing import Any

from celery import signals
from deployed import make_app
from traps import die_if_told, set_trap

from celery_sagas import Batch, Message, Saga, aggregator
from celery_sagas.worker.runtime import runtime_of

app = make_app()


class Numbered(Message):
    group: str
    number: int


class Tally(Saga, correlate_by="group"):
    group: str
    numbers: list[int] = []


@Tally.starts
def arrive(tally: Tally, group: str, number: int) -> None:
    tally.numbers.append(number)


@aggregator(name="passing.pass_on", size=20, within=1.0, group_by="group")
def pass_on(batch: Batch[Numbered]) -> None:
    for item in batch:
        batch.send(arrive.s(group=item.group, number=item.number))


@signals.worker_process_init.connect
def arm(**_: Any) -> None:
    """Put the traps into this process's runtime."""
    set_trap(runtime_of(app).batches.aggregates, "remove", "remove", lambda *rest: None, lambda _, point: die_if_told(point))
