"""Items of four steps, each of which sends the next."""

import timed as timed
from deployed import make_app
from latencies import note_latency as note_latency

from celery_sagas import Saga

app = make_app()


class Item(Saga, correlate_by="name"):
    name: str
    value: int = 0


@Item.starts
def first(item: Item, name: str, sent_at: float = 0) -> None:
    item.value += 1
    item.send(second.si(name=name, sent_at=sent_at))


@Item.handles
def second(item: Item, name: str, sent_at: float) -> None:
    item.value += 1
    item.send(third.si(name=name, sent_at=sent_at))


@Item.handles
def third(item: Item, name: str, sent_at: float) -> None:
    item.value += 1
    item.send(last.si(name=name, sent_at=sent_at))


@Item.starts
def last(item: Item, name: str, sent_at: float = 0) -> None:
    item.value += 1
