"""Lives of instances in this process, as often as standard input asks, a number to a line: ``lives.py <backend>``.

For each number it prints the median time of a life, of four steps. Seconds.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from itertools import count

from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.runtime import runtime_of

app = Celery("lives", broker="memory://", set_as_current=True)
app.conf.saga_backend = sys.argv[1]


class Item(Saga, correlate_by="name"):
    name: str
    value: int = 0


@Item.starts
def begin(item: Item, name: str) -> None:
    item.value += 1


@Item.handles
def go_on(item: Item, name: str) -> None:
    item.value += 1


@Item.handles
def end(item: Item, name: str) -> None:
    item.complete()


def live(name: str) -> float:
    began = time.perf_counter()
    for step in (begin, go_on, go_on, end):
        step(name=name)
    return time.perf_counter() - began


def names() -> Iterator[str]:
    return map("item {}".format, count())


if __name__ == "__main__":
    runtime_of(app).backend.prepare(create_schema=True, processes=1)
    name = names()
    for line in sys.stdin:
        print(statistics.median(live(next(name)) for _ in range(int(line))), flush=True)
