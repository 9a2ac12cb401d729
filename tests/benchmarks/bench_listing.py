"""Pages of fifty among a million instances of two sagas: the first, one that is deep, those of a tag, and a count."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from pathlib import Path

import pytest

from celery_sagas.core.ids import time_ordered_id
from celery_sagas.stores.instances import Instances, Page
from celery_sagas.stores.operations import Insert
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import effects, new_record
from tests import servers
from tests.benchmarks.conftest import Report

SIZE = int(os.environ.get("CELERY_SAGAS_TEST_LISTED", "1000000"))
#: How many are inserted at once, in which time; a page; the pages before the deep one; how often each is read.
AT_ONCE, EVERY_MS, LIMIT, DEEP, READS = 500, 60_000, 50, 1_000, 200
STATUSES = ("new", "paid", "packed", "sent", "lost")
#: Milliseconds.
BAR = 50


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_pages_of_a_million(report: Report, tmp_path: Path, engine: str) -> None:
    with _filled(engine, tmp_path) as backend:
        instances, paid = backend.instances, ("status", "paid")
        deep = _deep(lambda after: instances.page("order", LIMIT, after))
        deep_oldest = _deep(lambda after: instances.page("order", LIMIT, after, oldest_first=True))
        deep_tagged = _deep(lambda after: instances.tagged("order", paid, LIMIT, after))
        reads: dict[str, Callable[[], object]] = {
            "first page": lambda: instances.page("order", LIMIT),
            f"page {DEEP:,}": lambda: instances.page("order", LIMIT, deep),
            "oldest page": lambda: instances.page("order", LIMIT, oldest_first=True),
            f"oldest page {DEEP:,}": lambda: instances.page("order", LIMIT, deep_oldest, oldest_first=True),
            "page of a tag": lambda: instances.tagged("order", paid, LIMIT),
            f"page {DEEP:,} of a tag": lambda: instances.tagged("order", paid, LIMIT, deep_tagged),
            "states of a page": lambda: instances.read("order", _ids(instances)),
            "count to 10,001": lambda: instances.count("order", 10_001),
            "count of a tag to 10,001": lambda: instances.count("order", 10_001, paid),
        }
        for what, read in reads.items():
            median, worst = _milliseconds(read)
            report(f"{what} of {SIZE:,}, {engine}", f"{median:.2f} ms, 95 % in {worst:.2f}", f"< {BAR} ms", worst < BAR)


@contextmanager
def _filled(engine: str, folder: Path) -> Iterator[Backend]:
    """Fill a store of its own."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder}/sagas.sqlite3" if engine == "sqlite" else stack.enter_context(servers.database(engine))
        clock = Clock()
        backend = stack.enter_context(closing(open_backend(url, prefix=servers.unique(), options={}, clock=clock)))
        backend.prepare(create_schema=True, processes=1)
        inserts = map(_insert, range(SIZE))
        while part := list(islice(inserts, AT_ONCE)):
            assert backend.many(part) == [None] * len(part)
            clock.advance(EVERY_MS)
        yield backend


def _insert(number: int) -> Insert:
    saga, status = ("order", "parcel")[number % 2], STATUSES[number // 2 % len(STATUSES)]
    new = new_record(str(number), names=(saga,), tags=(("status", status),), id=time_ordered_id())
    return Insert(new, effects(new))


def _deep(read: Callable[[str], Page]) -> str:
    """Return where the deep page begins."""
    after = ""
    for _ in range(DEEP - 1):
        after = read(after).after
    return after


def _ids(instances: Instances) -> list[str]:
    return [glance.id for glance in instances.page("order", LIMIT).instances]


def _milliseconds(read: Callable[[], object]) -> tuple[float, float]:
    """Return the median time, and that in which 95 of 100 are done."""
    taken = []
    for _ in range(READS):
        began = time.perf_counter()
        read()
        taken.append((time.perf_counter() - began) * 1_000)
    return statistics.median(taken), statistics.quantiles(taken, n=20)[-1]
