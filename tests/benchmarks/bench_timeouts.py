"""What it costs to find the timeouts that are due among those that are not, and how late they come."""

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from celery_sagas.engine.relay import BATCH
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import Effects, Entry, Handling, Outgoing
from celery_sagas.stores.urls import open_backend
from celery_sagas.testing.samples import HOUR, STEP, by_id, change, effects, outgoing, start
from tests import redis_servers, servers
from tests.benchmarks.conftest import APPS, Report
from tests.integration.conftest import Deploy
from tests.waiting import wait_until

FEW, MANY = 100, 100_000
#: Timeouts that one commit writes.
COMMIT = 1_000
#: Timeouts that fall due at once, and how often.
DUE, ROUNDS = 10, 200
#: A claim that costs the same differs by no more than this, on a machine that is not quiet.
TARGET = 1.25
#: Timeouts of a running worker, and the relay's interval: the default.
ALARMS, INTERVAL_S = 1_000, 1.0
#: When they fall due: once all are set, so that none waits in the broker's queue behind what sets others. Seconds.
FROM_S, TO_S = 10.0, 30.0

#: Lives of timeouts of each kind, in turn; and how much more one may cost whose row stays until it is handled.
LIVES, KEPT_TARGET = 700, 1.05

_numbers = count()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_claiming_beside_many_that_are_not_due(report: Report, tmp_path: Path, engine: str) -> None:
    with _urls(engine, tmp_path) as urls, _pending(engine, urls[0], FEW) as few, _pending(engine, urls[1], MANY) as many:
        times: dict[int, list[float]] = {FEW: [], MANY: []}
        for _ in range(ROUNDS):
            times[FEW].append(_claim(few))
            times[MANY].append(_claim(many))
    beside_few, beside_many = (statistics.median(times[size]) * 1e6 for size in (FEW, MANY))
    reached = beside_many / beside_few
    report(
        f"claim of {DUE} timeouts beside {MANY} against {FEW}, {engine}",
        f"{reached:.2f}  ({beside_many:.0f} against {beside_few:.0f} µs)",
        f"<= {TARGET}",
        reached <= TARGET,
    )


@pytest.mark.parametrize(("engine", "broker"), [("sqlite", "redis"), ("postgresql", "rabbitmq"), ("redis", "redis")])
def test_how_late_they_come(deploy: Deploy, report: Report, engine: str, broker: str) -> None:
    """Beside many that are not due."""
    deployment = deploy("timeouts", broker, engine, saga_relay_interval=INTERVAL_S)
    deployment.paths = [str(APPS)]
    deployment.prepare()
    _fill(deployment.backend, MANY)
    deployment.start("prefork", 2, level="WARNING").wait_ready()
    chance = random.Random(0)
    for number in range(ALARMS):
        deployment.send("alarm.set_alarm", name=f"alarm {number}", after=chance.uniform(FROM_S, TO_S))
    wait_until(lambda: len(deployment.noted("late")) >= ALARMS, deployment.describe, deadline_s=TO_S + 60)
    late = sorted(float(line) for line in deployment.noted("late"))
    assert len(late) == ALARMS
    at_99 = late[ALARMS * 99 // 100]
    limit = INTERVAL_S + 0.25
    report(
        f"lateness of timeouts beside {MANY}, {engine}, {broker} broker",
        f"{at_99:.2f} s at the 99th percentile, {late[ALARMS // 2]:.2f} s median",
        f"< {limit:.2f} s",
        at_99 < limit,
    )


@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_what_a_row_costs_that_stays(report: Report, tmp_path: Path, engine: str) -> None:
    """A timeout in the store alone: it is scheduled, claimed and confirmed, its instance is found, and the timeout is handled."""
    with _urls(engine, tmp_path) as (url, _), _pending(engine, url, FEW) as backend:
        times: dict[int, list[float]] = {0: [], HOUR: []}
        for round in range(LIVES):
            for keep_ms in (0, HOUR) if round % 2 else (HOUR, 0):
                times[keep_ms].append(_live(backend, keep_ms))
    removed, kept = (statistics.median(times[keep_ms]) * 1e6 for keep_ms in (0, HOUR))
    ratio = kept / removed
    report(
        f"a timeout in the store whose row stays, {engine}",
        f"{ratio:.2f}  ({kept:.0f} against {removed:.0f} µs)",
        f"<= {KEPT_TARGET}",
        ratio <= KEPT_TARGET,
        ratio,
    )


def _live(backend: Backend, keep_ms: int) -> float:
    """Return the seconds that the store takes for the life of a timeout."""
    began, row = time.perf_counter(), outgoing("scheduled", due_at=1)
    record = start(backend, row.id, row)
    [claimed] = backend.outbox.claim_due("relay", BATCH, 60_000)
    assert backend.outbox.confirm("relay", [claimed.id], keep_ms) == 1
    assert backend.sagas.find(by_id(record.id), Handling((STEP,), row.message_id)).record
    backend.sagas.update(record, change(cancelled=(row.id,) if keep_ms else ()), effects(record))
    return time.perf_counter() - began


@contextmanager
def _pending(engine: str, url: str, size: int) -> Iterator[Backend]:
    """Open an empty backend, in which so many timeouts wait from now on."""
    backend = open_backend(url, prefix="", options={})
    backend.prepare(create_schema=True, processes=1)
    _fill(backend, size)
    if engine in ("postgresql", "sqlite"):
        with backend.database.connect() as connection:  # type: ignore[attr-defined]
            connection.exec_driver_sql("ANALYZE")
    yield backend
    backend.close()


def _fill(backend: Backend, size: int) -> None:
    """Schedule so many timeouts for tomorrow."""
    far = int(time.time() * 1000) + 86_400_000
    for first in range(0, size, COMMIT):
        _schedule(backend, [far + number for number in range(first, min(first + COMMIT, size))])


@contextmanager
def _urls(engine: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Make two databases of one server: of two servers, one may have to share its processor for seconds, the other not."""
    if engine == "sqlite":
        yield f"sqlite:///{folder}/few.sqlite3", f"sqlite:///{folder}/many.sqlite3"
    elif engine == "redis":
        with redis_servers.running() as server:
            yield server.url, f"{server.url.removesuffix('0')}1"
    else:
        with servers.database(engine) as few, servers.database(engine) as many:
            yield few, many


def _schedule(backend: Backend, due_at: list[int]) -> None:
    number = next(_numbers)
    entry = Entry("alarm.set", f"message {number}", "1", "handled", "alarm", "key", f"instance {number}", 1, "{}")
    rows = tuple(
        Outgoing(f"{number}-{position}", "scheduled", f"{number}/{position}", "alarm.ring", "{}" * 200, at)
        for position, at in enumerate(due_at)
    )
    backend.sagas.record(Effects(entry, rows, "owner", 30_000))


def _claim(backend: Backend) -> float:
    """Return the seconds that claiming timeouts takes that have just fallen due."""
    _schedule(backend, [1] * DUE)
    began = time.perf_counter()
    rows = backend.outbox.claim_due("relay", BATCH, 60_000)
    took = time.perf_counter() - began
    assert len(rows) == DUE
    assert backend.outbox.confirm("relay", [row.id for row in rows]) == DUE
    return took
