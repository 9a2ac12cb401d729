"""A process that asks: ``ask_in_turn.py <times>``. It prints how long a step's answer took, and a plain task's, in turn."""

import json
import sys
import time
from collections.abc import Callable

from questions import add, plain

from celery_sagas import ask


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    times = [
        (
            seconds(lambda: ask(add.si(name="one", amount=1), timeout=60)),
            seconds(lambda: plain.delay(name="one", amount=1).get(timeout=60)),
        )
        for _ in range(int(sys.argv[1]))
    ]
    print(json.dumps(times))
