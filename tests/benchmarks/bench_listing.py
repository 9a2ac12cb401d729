"""Pages of fifty among a million instances of two sagas, the first and one that is deep; a count; and one instance."""

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.core.ids import time_ordered_id
from celery_sagas.operate import Operator
from celery_sagas.stores.instances import Instances, Page
from celery_sagas.stores.operations import Insert
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.samples import effects, new_record
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests import redis_servers, servers
from tests.benchmarks.conftest import Report
from tests.benchmarks.living import block, living

SIZE = int(os.environ.get("CELERY_SAGAS_TEST_LISTED", "1000000"))
#: How many the database elsewhere has, half of them orders: a count goes no further than 10,001.
FEW = min(SIZE, 30_000)
#: How many are inserted at once, in which time; a page; the pages before the deep one; how often each is read.
AT_ONCE, EVERY_MS, LIMIT, DEEP, READS = 500, 60_000, 50, 1_000, 200
STATUSES = ("new", "paid", "packed", "sent", "lost")
#: What is handled, and scheduled, for the instance that is shown.
HANDLED, TIMEOUTS = 50, 20
#: Milliseconds.
BAR, COUNT_BAR, SHOW_BAR = 50, 20, 30
#: A page, and a count, as often as four who follow ask, beside the steps of so many lives, so often without and with each.
LOOKS_EVERY_S, LIVES, BLOCKS = 0.25, 500, 11
CODE = str(Path(__file__).resolve().parents[2])


class Watched(Saga, correlate_by="name"):
    """The one that is shown."""

    name: str
    value: int = 0


@Watched.starts
def watch(watched: Watched, name: str) -> None:
    """Count, and schedule a timeout at first."""
    watched.value += 1
    if watched.value <= TIMEOUTS:
        watched.schedule(remind.s(name=name), after=86_400, name=f"reminder {watched.value}")


@Watched.handles
def remind(watched: Watched, name: str) -> None:
    """Do nothing."""


@pytest.mark.parametrize("engine", ["memory", "sqlite", "postgresql", "mariadb", "redis"])
def test_pages_of_a_million(report: Report, tmp_path: Path, engine: str) -> None:
    with _filled(engine, tmp_path) as app:
        instances, paid = runtime_of(app).backend.instances, ("status", "paid")
        watched = Operator(app, "ann").instance(Watched, "one")
        deep = _deep(lambda after: instances.page("order", LIMIT, after))
        deep_oldest = _deep(lambda after: instances.page("order", LIMIT, after, oldest_first=True))
        deep_tagged = _deep(lambda after: instances.tagged("order", paid, LIMIT, after))
        reads: dict[str, tuple[int, Callable[[], object]]] = {
            "first page": (BAR, lambda: instances.page("order", LIMIT)),
            f"page {DEEP:,}": (BAR, lambda: instances.page("order", LIMIT, deep)),
            "oldest page": (BAR, lambda: instances.page("order", LIMIT, oldest_first=True)),
            f"oldest page {DEEP:,}": (BAR, lambda: instances.page("order", LIMIT, deep_oldest, oldest_first=True)),
            "page of a tag": (BAR, lambda: instances.tagged("order", paid, LIMIT)),
            f"page {DEEP:,} of a tag": (BAR, lambda: instances.tagged("order", paid, LIMIT, deep_tagged)),
            "states of a page": (BAR, lambda: instances.read("order", _ids(instances))),
            "count to 10,001": (COUNT_BAR, lambda: instances.count("order", 10_001)),
            "count of a tag to 10,001": (COUNT_BAR, lambda: instances.count("order", 10_001, paid)),
            f"show, {HANDLED} entries, {TIMEOUTS} rows": (SHOW_BAR, watched.show),
        }
        if engine == "memory":  # which is for tests, and looks at the whole journal for the entries of one key
            del reads[f"show, {HANDLED} entries, {TIMEOUTS} rows"]
        for what, (bar, read) in reads.items():
            median, worst = _milliseconds(read)
            report(f"{what} of {SIZE:,}, {engine}", f"{median:.2f} ms, 95 % in {worst:.2f}", f"< {bar} ms", worst < bar)
        if engine != "memory":
            _report_beside(report, app, engine, tmp_path)


def _report_beside(report: Report, app: Celery, engine: str, folder: Path) -> None:
    """Report what reads cost those who commit meanwhile, from another process.

    They take time of a processor, of which there may be few: they are compared with the same reads of another database, and
    on Redis of another server, since one thread serves all databases of one.
    """

    def page(instances: Instances) -> None:
        instances.page("order", LIMIT)

    def page_and_count(instances: Instances) -> None:
        page(instances)
        instances.count("order", 10_001)

    (elsewhere := folder / "elsewhere").mkdir()
    with _filled(engine, elsewhere, size=FEW, is_apart=True) as other:
        here, there = (runtime_of(each).backend.instances for each in (app, other))
        looks = {(look, instances): list[float]() for look in (page, page_and_count) for instances in (here, there)}
        alone = list[float]()
        with living(CODE, app.conf.saga_backend, app.conf.saga_prefix) as process:
            block(process, LIVES)
            for (look, instances), ratios in list(looks.items()) * BLOCKS:
                alone.append(block(process, LIVES).worst)
                with _repeating(partial(look, instances)):
                    ratios.append(block(process, LIVES).worst / alone[-1])
    found, bar = {each: statistics.median(ratios) for each, ratios in looks.items()}, 1.1
    figure = f"{found[page, here]:.2f}  (alone {statistics.median(alone) * 1_000:.2f} ms)"
    report(f"99 % of steps beside a page, {engine}", figure, f"<= {bar}", found[page, here] <= bar)
    for look in (page, page_and_count):
        own, control = found[look, here], found[look, there]
        what = f"the same, {look.__name__.replace('_', ' ')}, here / elsewhere, {engine}"
        report(what, f"{own / control:.2f}  ({own:.2f} against {control:.2f})", f"<= {bar}", own / control <= bar)


@contextmanager
def _repeating(look: Callable[[], object]) -> Iterator[None]:
    """Look every ``LOOKS_EVERY_S`` seconds meanwhile."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(LOOKS_EVERY_S):
            look()

    looking = threading.Thread(target=repeat)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()


@contextmanager
def _filled(engine: str, folder: Path, size: int = SIZE, *, is_apart: bool = False) -> Iterator[Celery]:
    """Fill a store of its own, which may be apart from all others, and make an app on it."""
    with ExitStack() as stack:
        app = Celery(servers.unique("app"), broker="memory://", set_as_current=True)
        app.conf.saga_backend, app.conf.saga_prefix = stack.enter_context(_url(engine, folder, is_apart)), servers.unique()
        stack.callback(close_runtime, app)
        with closing(
            open_backend(app.conf.saga_backend, prefix=app.conf.saga_prefix, options={}, clock=(clock := Clock()))
        ) as backend:
            backend.prepare(create_schema=True, processes=1)
            inserts = map(_insert, range(size))
            while part := list(islice(inserts, AT_ONCE)):
                assert backend.many(part) == [None] * len(part)
                clock.advance(EVERY_MS)
            for _ in range(HANDLED):
                app.tasks["watched.watch"](name="one")
            yield app


@contextmanager
def _url(engine: str, folder: Path, is_apart: bool) -> Iterator[str]:
    if engine in ("memory", "sqlite"):
        yield "memory://filled" if engine == "memory" else f"sqlite:///{folder}/sagas.sqlite3"
    elif engine == "redis" and is_apart:
        with redis_servers.running() as server:
            yield server.url
    else:
        with servers.database(engine) as url:
            yield url


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
