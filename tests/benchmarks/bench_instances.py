"""The time of a step beside a thousand live instances, and beside a million: store and engine, in this process."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text

from celery_sagas import Saga
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests import servers
from tests.benchmarks.conftest import Report

FEW, MANY = 1_000, 1_000_000
#: The instances that messages go to: the same number beside few as beside many, evenly among the others.
BUSY = 500
#: Of each size in turn, and how often.
BLOCK, BLOCKS = 100, 40


class Crowded(Saga, correlate_by="name"):
    """One of many."""

    name: str
    value: int = 0


@Crowded.starts
def crowd(crowded: Crowded, name: str) -> None:
    """Count."""
    crowded.value += 1


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb"])
def test_a_step_beside_a_million_instances(report: Report, tmp_path: Path, engine: str) -> None:
    with ExitStack() as stack:
        few, many = [stack.enter_context(_crowd(engine, tmp_path, size)) for size in (FEW, MANY)]
        for steps in (few, many):
            steps.run(BUSY)  # every instance has been touched
        for _ in range(BLOCKS):
            few.run(BLOCK)
            many.run(BLOCK)
        ratio = statistics.median(many.blocks[1:]) / statistics.median(few.blocks[1:])
        report(
            f"step beside {MANY} instances against {FEW}, {engine}",
            f"{ratio:.2f}  ({microseconds(many)} against {microseconds(few)} µs)",
            "<= 1.10",
            ratio <= 1.10,
        )


class Steps:
    """Messages to instances in one database."""

    def __init__(self, app: Celery, size: int) -> None:
        self._task: Any = app.tasks["crowded.crowd"]
        self._names = [f"instance {number * (size // BUSY)}" for number in range(BUSY)]
        self._next = 0
        self.blocks: list[float] = []  #: seconds

    def run(self, count: int) -> None:
        """Handle messages, and note the time of the median one."""
        times = []
        for _ in range(count):
            name = self._names[self._next % BUSY]
            self._next += 7
            times.append(self._handle(name))
        self.blocks.append(statistics.median(times))

    def _handle(self, name: str) -> float:
        began = time.perf_counter()
        self._task(name=name)
        return time.perf_counter() - began


def microseconds(steps: Steps) -> int:
    """Return the median time of a step."""
    return round(statistics.median(steps.blocks[1:]) * 1e6)


@contextmanager
def _crowd(engine: str, folder: Path, size: int) -> Iterator[Steps]:
    """Fill a database of its own with copies of a real row."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder}/{size}.sqlite3" if engine == "sqlite" else stack.enter_context(servers.database(engine))
        app = Celery(servers.unique("app"), broker="memory://", set_as_current=True)
        app.conf.saga_backend = url
        backend: Any = runtime_of(app).backend
        stack.callback(close_runtime, app)
        backend.prepare(create_schema=True, processes=1)
        crowd(name="instance")
        with backend.database.connect() as connection:
            for statement in _copies(engine, size):
                connection.execute(text(statement))
        yield Steps(app, size)


def _copies(engine: str, size: int) -> list[str]:
    numbers = {
        "postgresql": f"SELECT generate_series AS n FROM generate_series(0, {size - 1})",
        "mariadb": f"SELECT seq AS n FROM seq_0_to_{size - 1}",
        "sqlite": f"WITH RECURSIVE r(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM r WHERE n < {size - 1}) SELECT n FROM r",
    }[engine]
    columns = (
        "prefix, {id}, saga, {key}, version, schema_version, {data}, pending, created_at, updated_at, locked_by, locked_until"
    )
    number = "CAST(n AS CHAR)" if engine == "mariadb" else "CAST(n AS TEXT)"
    join = f"concat('instance ', {number})" if engine == "mariadb" else f"'instance ' || {number}"
    state = f"""concat('"instance ', {number}, '"')""" if engine == "mariadb" else f"""'"instance ' || {number} || '"'"""
    unlike = {"postgresql": "gen_random_uuid()::text", "mariadb": "CAST(uuid() AS CHAR)", "sqlite": "lower(hex(randomblob(16)))"}[
        engine
    ]
    into = columns.format(id="id", key="`key`" if engine == "mariadb" else "key", data="data")
    select = columns.format(id=unlike, key=join, data=f"replace(data, '\"instance\"', {state})")
    analyze = {"postgresql": "VACUUM ANALYZE", "mariadb": "ANALYZE TABLE", "sqlite": "ANALYZE"}[engine]
    insert = f"INSERT INTO saga_instance ({into}) SELECT {select} FROM saga_instance, ({numbers}) AS numbers"
    return [insert, f"{analyze} saga_instance"]
