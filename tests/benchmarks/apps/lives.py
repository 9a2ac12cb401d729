"""Lives of instances in this process, as often as standard input asks, a number to a line:
``lives.py <backend> <prefix> [traced]``.

For each number it prints the median time of a step, of the four of a life, and that in which 99 of 100 are done. Seconds.
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
_, app.conf.saga_backend, app.conf.saga_prefix, *traced = sys.argv
if traced:  # its spans are made, and nobody gets them
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    from celery_sagas.telemetry.tracing import SagaInstrumentor

    trace.set_tracer_provider(TracerProvider())
    SagaInstrumentor().instrument()


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


def live(name: str) -> Iterator[float]:
    """Yield the time of each step."""
    for step in (begin, go_on, go_on, end):
        began = time.perf_counter()
        step(name=name)
        yield time.perf_counter() - began


if __name__ == "__main__":
    runtime_of(app).backend.prepare(create_schema=True, processes=1)
    names = map("item {}".format, count())
    for line in sys.stdin:
        times = [each for _ in range(int(line)) for each in live(next(names))]
        print(statistics.median(times), statistics.quantiles(times, n=100)[-1], flush=True)
