"""What it costs a step that its span is made, though nobody gets it; and what it costs that it might be.

A step is called, so that no broker's time is counted; and it is handled by a worker, as users have it.
"""

import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import TypeAlias

import pytest

from tests.benchmarks.bench_before import BEFORE, NOW, urls
from tests.benchmarks.conftest import Report
from tests.benchmarks.living import block, living
from tests.benchmarks.rates import in_turn, middle, rate, ratio, spread
from tests.integration.conftest import Deploy

#: Lives in a row, and how often each process lives them, in turn; the first time warms up.
LIVES, BLOCKS = 100, 60
ON, OFF = 1.08, 1.005
ENGINES = ("memory", "sqlite", "postgresql", "mariadb", "redis")

Start: TypeAlias = Callable[[str], AbstractContextManager["Popen[str]"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_is_traced(report: Report, tmp_path: Path, engine: str) -> None:
    off, on = partial(living, NOW), partial(living, NOW, is_traced=True)
    _compare(report, f"step with a span against none, {engine}", tmp_path, engine, off, on, ON)


@pytest.mark.parametrize("batch", [50, 1])
def test_a_step_that_is_traced_in_a_worker(deploy: Deploy, report: Report, batch: int) -> None:
    """In one process, in batches or each as a task."""
    off, on = deploy("timed_counters", "redis", "redis"), deploy("traced_counters", "redis", "redis")
    for deployment in (off, on):
        deployment.settings["saga_batch"] = batch
    untraced, traced = in_turn([partial(rate, each, "counter.add", "prefork", processes=1) for each in (off, on)])
    cost = 1 / ratio(traced, untraced)
    report(
        f"step with a span against none, worker, redis, batches of {batch}",
        f"{cost:.3f}  ({middle(traced)} of {middle(untraced)} /s; {spread(traced, untraced)})",
        f"<= {ON}",
        cost <= ON,
    )


@pytest.mark.skipif(not BEFORE, reason="CELERY_SAGAS_TEST_BEFORE names no checkout")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_that_is_not_traced(report: Report, tmp_path: Path, engine: str) -> None:
    """Against one of a version that knows of no traces."""
    before, now = partial(living, BEFORE), partial(living, NOW)
    _compare(report, f"step without a span against before, {engine}", tmp_path, engine, before, now, OFF)


def _compare(report: Report, what: str, folder: Path, engine: str, start: Start, other: Start, target: float) -> None:
    """Have two processes live in databases of one server, in turn."""
    with urls(engine, folder) as (url, url_of_other), ExitStack() as stack:
        first, second = stack.enter_context(start(url)), stack.enter_context(other(url_of_other))
        blocks: list[tuple[float, float]] = []
        for number in range(BLOCKS + 1):
            if number % 2:
                was, it_is = block(first, LIVES).median, block(second, LIVES).median
            else:
                it_is, was = block(second, LIVES).median, block(first, LIVES).median
            blocks.append((was, it_is))
    was, it_is = (statistics.median(times) * 1e6 for times in zip(*blocks[1:], strict=True))
    ratio = statistics.median(it_is / was for was, it_is in blocks[1:])
    report(what, f"{ratio:.3f}  ({it_is:.0f} against {was:.0f} µs)", f"<= {target}", ratio <= target)
