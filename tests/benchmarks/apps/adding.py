"""A producer that adds numbers past the broker: ``adding.py <items> <in one call> <from when>``, of the monotonic clock.

It prints from when and until when that took, without what is done once.
"""

import sys
import time

from batched import collect

from celery_sagas.worker.runtime import runtime_of


def add(items: int, chunk: int, starts_at: float) -> tuple[float, float]:
    """Return when adding began and ended. Seconds."""
    app = collect.app
    runtime_of(app).prepare(processes=1)
    collect.add(0)
    time.sleep(max(0.0, starts_at - time.monotonic()))
    began = time.monotonic()
    for start in range(0, items, chunk):
        if chunk == 1:
            collect.add(start)
        else:
            collect.add_many(range(start, start + chunk))
    return began, time.monotonic()


if __name__ == "__main__":
    print(*add(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
