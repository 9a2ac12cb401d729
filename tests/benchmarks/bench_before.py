"""What a step costs against what it cost in an earlier version, whose checkout ``CELERY_SAGAS_TEST_BEFORE`` names."""

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests import redis_servers, servers
from tests.benchmarks.conftest import Report
from tests.benchmarks.living import block, living

BEFORE, NOW = os.environ.get("CELERY_SAGAS_TEST_BEFORE", ""), str(Path(__file__).resolve().parents[2])
#: Lives in a row, and how often each version lives them, in turn; the first time warms up.
LIVES, BLOCKS = 100, 60
TARGET = 1.03


@pytest.mark.skipif(not BEFORE, reason="CELERY_SAGAS_TEST_BEFORE names no checkout")
@pytest.mark.parametrize("engine", ["sqlite", "postgresql", "mariadb", "redis"])
def test_a_step_against_one_before(report: Report, tmp_path: Path, engine: str) -> None:
    """Both are alive in databases of one server, in turn."""
    with urls(engine, tmp_path) as both, ExitStack() as stack:
        before, now = (stack.enter_context(living(code, url)) for code, url in zip((BEFORE, NOW), both, strict=True))
        blocks: list[tuple[float, float]] = []
        for number in range(BLOCKS + 1):
            if number % 2:
                was, it_is = block(before, LIVES).median, block(now, LIVES).median
            else:
                it_is, was = block(now, LIVES).median, block(before, LIVES).median
            blocks.append((was, it_is))
        if engine == "postgresql":
            hot_before, hot = map(_hot_share, both)
            report(
                "HOT updates of all against before, postgresql",
                f"{hot:.2f} against {hot_before:.2f}",
                ">= 0.9 of it",
                hot >= 0.9 * hot_before,
            )
    was, it_is = (statistics.median(times) * 1e6 for times in zip(*blocks[1:], strict=True))
    ratio = statistics.median(it_is / was for was, it_is in blocks[1:])
    report(
        f"step against one before, {engine}", f"{ratio:.3f}  ({it_is:.0f} against {was:.0f} µs)", f"<= {TARGET}", ratio <= TARGET
    )


def _hot_share(url: str) -> float:
    """Return the part of the updates of instances that left all indexes alone."""
    engine = create_engine(url)
    with closing(engine.connect()) as connection:
        counted = text("SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'saga_instance'")
        hot, updates = connection.execute(counted).one()
    engine.dispose()
    return float(hot / updates)


@contextmanager
def urls(engine: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the URLs of two databases of one server."""
    if engine == "memory":
        yield "memory://", "memory://"
    elif engine == "sqlite":
        yield f"sqlite:///{folder}/before.sqlite3", f"sqlite:///{folder}/now.sqlite3"
    elif engine == "redis":
        with redis_servers.running() as server:
            yield server.url, f"{server.url.removesuffix('0')}1"
    else:
        with servers.database(engine) as before, servers.database(engine) as now:
            yield before, now
