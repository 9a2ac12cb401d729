"""Whether a buffer becomes slower when it is large: the same calls beside 10³ and 10⁶ items of the same group."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import pytest

from celery_sagas.stores.items import Addition, NewItem, Rules
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.urls import open_backend
from tests.benchmarks.conftest import Report
from tests.servers import unique

SMALL, LARGE = 1_000, 1_000_000
#: Items in one call, and calls of each kind that are timed, forth and back between the two buffers.
BATCH, CALLS = 1_000, 30
_FILL = 10_000
PAYLOAD = '{"device_id": "d1", "celsius": 20.5}'


@pytest.fixture
def backend(request: pytest.FixtureRequest, engine: str, tmp_path) -> Iterator[Backend]:
    url = f"sqlite:///{tmp_path}/buffers.sqlite3" if engine == "sqlite" else request.getfixturevalue(f"{engine}_url")
    with closing(open_backend(url, prefix=unique("buffers"), options={})) as backend:
        backend.prepare(create_schema=True, processes=1)
        yield backend


@pytest.mark.parametrize("engine", ["redis", "postgresql", "sqlite"])
@pytest.mark.timeout(1_800)
def test_calls_beside_many_items(backend: Backend, report: Report, engine: str) -> None:
    small, large = (Rules(name, size=BATCH) for name in ("small", "large"))
    for rules, count in ((small, SMALL), (large, LARGE)):
        for _ in range(0, count, _FILL):
            _insert(backend, rules, min(count, _FILL))
    times: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in ("insert", "claim", "remove")}
    for call in range(CALLS):
        for position, rules in ((0, small), (1, large)) if call % 2 else ((1, large), (0, small)):
            token = uuid4().hex
            times["insert"][position].append(_timed(lambda rules=rules: _insert(backend, rules, BATCH)))
            times["claim"][position].append(_timed(lambda rules=rules, token=token: backend.aggregates.claim(rules, "", token)))
            times["remove"][position].append(_timed(lambda rules=rules, token=token: backend.aggregates.remove(rules, "", token)))
    for what, (few, many) in times.items():
        reached = statistics.median(many) / statistics.median(few)
        figure = f"{reached:.2f}  ({statistics.median(few) * 1000:.1f} → {statistics.median(many) * 1000:.1f} ms)"
        report(f"{what} of {BATCH:,} beside {LARGE:,} items, {engine}", figure, "<= 1.20", reached <= 1.20)


def _insert(backend: Backend, rules: Rules, count: int) -> None:
    backend.aggregates.insert(rules, [Addition("", tuple(NewItem(uuid4().hex, PAYLOAD) for _ in range(count)))])


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
