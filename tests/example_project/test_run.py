"""The example, run as its users run it: in a process of its own, from a folder with nothing but the example in it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text

from tests import servers

EXAMPLE = Path(__file__).parents[2] / "example_project"
#: seconds
LIMIT = 90


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the example beside nothing else, so that it runs on the library that is installed."""
    shutil.copytree(EXAMPLE, tmp_path / "clone" / EXAMPLE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "clone"


@contextmanager
def started(clone: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the example."""
    command = [sys.executable, "-m", "example_project", f"--timeout={LIMIT}", "--json", *options]
    environment = {**os.environ, "TMPDIR": str(temporary(clone))}
    with subprocess.Popen(
        command, cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()  # it stops its worker


def run(clone: Path, *options: str) -> tuple[int, str, str]:
    """Run the example; return exit code, output and errors."""
    with started(clone, *options) as process:
        output, errors = process.communicate(timeout=LIMIT + 30)
        return process.returncode, output, errors


def temporary(clone: Path) -> Path:
    """Return the folder for its temporary files."""
    return clone.parent / "temporary"


def test_every_order_is_in_the_state_that_it_must_be_in(clone: Path) -> None:
    code, output, errors = run(clone, "--orders=8")
    assert code == 0, errors
    summary: dict[str, Any] = json.loads(output)
    assert summary["ok"] is True
    assert summary["problems"] == []
    assert summary["outcomes"] == {"delivered": 6, "declined": 1, "cancelled": 1}
    assert summary["books"]["payments"] == 6
    assert summary["books"]["taken"] == summary["books"]["balance"]
    assert (summary["books"]["charged"], summary["books"]["refunded"]) == (7, 1)
    assert summary["books"]["calls"] == 11, "a flaky card takes three calls, one that waits for the customer two"
    assert list(temporary(clone).iterdir()) == [], "it left files behind"


@pytest.mark.parametrize(
    ("module", "right", "wrong", "problem"),
    [
        ("till.py", "till.orders += 1", "till.orders += 2", "the books do not add up"),
        ("bank.py", 'card == "declined"', 'card == "refused"', "it is delivered, not declined"),
    ],
)
def test_a_wrong_state_is_found(clone: Path, module: str, right: str, wrong: str, problem: str) -> None:
    """The check can fail: what is mutated here writes another state than the shop's rules demand."""
    source = clone / EXAMPLE.name / module
    assert source.read_text().count(right) == 1, f"{module} has changed: name another line of it in this test"
    source.write_text(source.read_text().replace(right, wrong))
    code, output, errors = run(clone, "--orders=6")
    assert code == 1, errors
    assert problem in output


def test_a_worker_that_does_not_start_says_why(clone: Path) -> None:
    code, output, errors = run(clone, "--backend=nosuch://somewhere")
    assert (code, output) == (1, "")
    assert "The worker ended" in errors
    assert "no saga backend serves the scheme nosuch://" in errors


def test_an_interrupt_stops_the_worker(clone: Path) -> None:
    with started(clone, "--orders=6") as process:
        worker = pid_of_worker(clone)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
    assert list(temporary(clone).iterdir()) == [], "it left files behind"


def test_it_runs_on_redis_and_leaves_nothing_there(clone: Path, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        before = set(client.keys())
        code, output, errors = run(clone, "--orders=6", f"--broker={redis_url}")
        assert code == 0, output + errors
        assert set(client.keys()) == before


def test_it_runs_on_rabbitmq_and_postgresql_and_leaves_no_rows(clone: Path, rabbitmq_url: str, postgresql_url: str) -> None:
    code, output, errors = run(clone, "--orders=6", f"--broker={rabbitmq_url}", f"--backend={postgresql_url}")
    assert code == 0, output + errors
    engine = create_engine(servers.driven(postgresql_url))
    with engine.connect() as connection:
        for table in ("saga_instance", "saga_key", "saga_journal", "saga_outbox", "saga_dead"):
            assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0, table
    engine.dispose()


def pid_of_worker(clone: Path) -> int:
    """Wait for the worker's pidfile and return what it says."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for pidfile in temporary(clone).glob("*/worker.pid"):
            with suppress(ValueError):  # not written yet
                return int(pidfile.read_text())
        time.sleep(0.05)
    raise AssertionError("no worker was started within 30 seconds")
