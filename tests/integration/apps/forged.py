"""What forged messages are sent to: a saga, an aggregator, and plain tasks of both kinds."""

from typing import Any

from deployed import make_app, note

from celery_sagas import Batch, Failure, Message, Saga, aggregator

app = make_app()


class Target(Saga, correlate_by="name"):
    name: str
    count: int = 0


class Item(Message):
    group: str
    number: int


@Target.starts
def hit(target: Target, name: str) -> None:
    target.count += 1


@Target.handles
def missed(target: Target, failure: Failure) -> None:
    target.count += 1


@aggregator(name="forged.collect", size=1_000, within=0.2, group_by="group")
def collect(batch: Batch[Item]) -> None:
    """Take what comes."""


@app.task(name="forged.work")
def work(*args: Any, **kwargs: Any) -> None:
    """Take what comes."""


@app.task(name="forged.work_late", acks_late=True)
def work_late(name: str = "") -> str:
    return name


@app.task(name="forged.tell_good")
def tell_good(name: str) -> None:
    """Note a message that nobody has forged."""
    note("good", name)
