"""A producer that adds numbers past the broker: ``adding.py <items> <in one call>`` prints how many seconds that took."""

import sys
import time

from batched import collect

from celery_sagas.worker.runtime import runtime_of


def add(items: int, chunk: int) -> float:
    """Return the seconds that adding takes, without what is done once."""
    app = collect.app
    runtime_of(app).prepare(processes=1)
    collect.add(0)
    began = time.perf_counter()
    for start in range(0, items, chunk):
        if chunk == 1:
            collect.add(start)
        else:
            collect.add_many(range(start, start + chunk))
    return time.perf_counter() - began


if __name__ == "__main__":
    print(add(*map(int, sys.argv[1:])))
