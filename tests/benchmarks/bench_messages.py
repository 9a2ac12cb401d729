"""Whether a part of a message takes longer to be checked where there are many: the same parts in small and in large messages."""

import statistics
import time
from typing import Any

from kombu.utils.json import dumps, loads
from pydantic import BaseModel

from celery_sagas.core.arguments import arguments_of
from tests.benchmarks.conftest import Report

SMALL, LARGE = 1_000, 50_000
ROUNDS = 5
#: How much longer each part may take; if it were compared with all the others, that would be fifty times as long.
TARGET = 2.0


class Line(BaseModel):
    """A part of a message."""

    sku: str
    amount: str = "1"


def place(order: object, lines: list[Line]) -> None:
    """Stand for a step."""


def test_parts_of_large_messages(report: Report) -> None:
    arguments: Any = arguments_of("order.place", place, leading=1)
    small, large = list[float](), list[float]()
    for _ in range(ROUNDS):
        large.append(_seconds_each(arguments, LARGE))
        small.append(_seconds_each(arguments, SMALL))
    reached = statistics.median(large) / statistics.median(small)
    report(
        f"each of {LARGE:,} parts of a message against each of {SMALL:,}",
        f"{reached:.2f}  ({statistics.median(small) * 1e6:.1f} → {statistics.median(large) * 1e6:.1f} µs)",
        f"<= {TARGET}",
        reached <= TARGET,
    )


def _seconds_each(arguments: Any, count: int) -> float:
    """Send a message, as JSON that kombu writes and reads, and check it; return the seconds for each of its parts."""
    lines = [{"sku": str(number), "amount": "1"} for number in range(count)]
    began = time.perf_counter()
    args, kwargs = loads(dumps(arguments.encode((lines,), {})))
    received = arguments.validate(arguments.bind(args, kwargs))
    assert len(received["lines"]) == count
    return (time.perf_counter() - began) / count
