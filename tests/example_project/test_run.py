"""The example, run as its users run it: in a process of its own, from a folder with nothing but the example in it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text

from tests import servers
from tests.waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "example_project"
#: Seconds that the example may take on a busy machine.
LIMIT = 240
#: Where nothing may be left; the store keeps the names of aggregators.
TABLES = [f"saga_{name}" for name in ("instance", "key", "journal", "delivery", "outbox", "dead")]
TABLES += [f"saga_{name}" for name in ("buffer", "group", "lease", "seen")]


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


def test_every_order_and_trip_is_in_the_state_that_it_must_be_in(clone: Path) -> None:
    code, output, errors = run(clone, "--orders=9", "--trips=5")
    assert code == 0, errors
    summary: dict[str, Any] = json.loads(output)
    assert summary["ok"] is True
    assert summary["problems"] == []
    assert summary["outcomes"] == {"delivered": 6, "declined": 1, "cancelled": 1, "unserved": 1}
    assert summary["books"]["sales"] == 6
    assert summary["books"]["taken"] == summary["books"]["balance"]
    assert (summary["books"]["charged"], summary["books"]["refunded"]) == (8, 2)
    assert summary["books"]["calls"] == 12, "a flaky card takes three calls, one that waits for the customer two"
    assert list(temporary(clone).iterdir()) == [], "it left files behind"
    invoices = summary["invoices"]
    assert (invoices["filed"], invoices["rejected"], invoices["waiting"]) == (6 + 12, 1, 0)
    assert Decimal(invoices["total"]) == Decimal(summary["books"]["taken"]) + Decimal("254.88"), "those of the counter beside"
    assert invoices["largest_batch"] == 5
    assert summary["trips"] == {"booked": 2, "impossible": 2, "called off": 1}
    assert summary["bookings"]["kept"] == 2 * 3


#: The module, the text that is mutated, the one in its place, and the problem that the check must tell. Those of one run do not
#: hide each other's problems.
MUTATIONS = {
    "what is sold": [
        ("till.py", "till.orders += 1", "till.orders += 2", "the books do not add up"),
        ("invoices.py", "invoice.total > 0", "invoice.total", "the ledger should not have the invoice counter-13"),
        ("orders.py", "book=order.carrier", 'book="prompt"', "the ledger lacks the invoice 1002 over 21.36 in the book of hasty"),
    ],
    "how it ends, and what is undone": [
        ("bank.py", 'card == "declined"', 'card == "refused"', "it is delivered, not declined"),
        ("orders.py", ", at_least=1", "", "it is unserved, not delivered"),
        ("invoices.py", "size=SIZE", "size=SIZE + 1", "a batch has 6 invoices, and 5 is the most"),
        (
            "travel.py",
            "cancel(service, trip_id)",
            'cancel(service, "T2")',
            "silent hotel): it has the bookings ['flight', 'hotel'], not []",
        ),
        ("travel.py", 'destination == "Venice"', 'destination == "Rome"', "(trip without car): it is booked, not impossible"),
    ],
}


@pytest.mark.parametrize("mutations", MUTATIONS.values(), ids=MUTATIONS)
def test_a_wrong_state_is_found(clone: Path, mutations: list[tuple[str, str, str, str]]) -> None:
    """The check can fail: what is mutated here writes another state than the shop's rules demand."""
    for module, right, wrong, _ in mutations:
        source = clone / EXAMPLE.name / module
        assert source.read_text().count(right) == 1, f"{module} has changed: name another line of it in this test"
        source.write_text(source.read_text().replace(right, wrong))
    code, output, errors = run(clone, "--orders=7", "--trips=4")
    assert code == 1, errors
    assert [problem for *_, problem in mutations if problem not in output] == [], output


def test_a_worker_that_does_not_start_says_why(clone: Path) -> None:
    code, output, errors = run(clone, "--backend=nosuch://somewhere")
    assert (code, output) == (1, "")
    assert "The worker ended" in errors
    assert "no saga backend serves the scheme nosuch://" in errors


def test_an_interrupt_stops_the_worker(clone: Path) -> None:
    with started(clone, "--orders=3000") as process:  # which take longer than a lost interrupt is waited for
        worker = pid_of_worker(clone)
        while process.poll() is None:  # where Python ignores exceptions, an interrupt is lost
            if is_running(worker):  # else it cleans up
                process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
        assert process.returncode == 1
        assert process.stderr is not None
        assert process.stderr.read().endswith("Aborted!\n")
    assert not is_running(worker)
    assert list(temporary(clone).iterdir()) == [], "it left files behind"


def test_it_ends_on_redis_as_with_sqlite_and_leaves_nothing_there(clone: Path, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        before = set(client.keys())
        code, output, errors = run(clone, "--orders=9", "--trips=4", f"--broker={redis_url}", f"--backend={redis_url}")
        assert code == 0, output + errors
        summary: dict[str, Any] = json.loads(output)
        assert summary["outcomes"] == {"delivered": 6, "declined": 1, "cancelled": 1, "unserved": 1}
        assert (summary["ok"], summary["books"]["sales"], summary["books"]["calls"]) == (True, 6, 12)
        left = set(client.keys()) - before
        assert all(key.startswith(b"{") for key in left), "nothing of the broker's"
        lasting = {key.decode().partition("}")[2] for key in left if client.pttl(key) == -1}
        noted = {"", ":buffer:names", ":buffer:sequence"}
        assert lasting <= noted, "it leaves nothing but the notes of the layout, and of the aggregator's name"


def test_it_runs_on_rabbitmq_and_postgresql_and_leaves_no_rows(clone: Path, rabbitmq_url: str) -> None:
    with servers.database("postgresql") as url:  # which no other test has used
        code, output, errors = run(clone, "--orders=7", "--trips=4", f"--broker={rabbitmq_url}", f"--backend={url}")
        assert code == 0, output + errors
        engine = create_engine(servers.driven(url))
        with engine.connect() as connection:
            for table in TABLES:
                assert connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() == 0, table
        engine.dispose()


def is_running(pid: int) -> bool:
    """Whether there is a process."""
    return Path(f"/proc/{pid}").exists()


def pid_of_worker(clone: Path) -> int:
    """Wait for the worker's pidfile and return what it says."""

    def written() -> list[str]:
        return [pid for pidfile in temporary(clone).glob("*/worker.pid") if (pid := pidfile.read_text().strip())]

    return int(wait_until(written, "a pidfile of a worker")[0])


def test_a_night_is_over_when_nothing_is_stuck(clone: Path) -> None:
    code, output, errors = run(clone, "--operate")
    assert code == 0, errors
    found, *_, left, audit = output.removeprefix("$ ").split("\n$ ")
    assert [line.split()[0] for line in found.splitlines()[2:5]] == ["held", "paused", "failing"]
    assert left.splitlines()[1] == "Nothing is stuck."
    assert sorted(line.split()[4] for line in audit.strip().splitlines()[2:]) == ["discard", "hold", "pause", "release", "resume"]
    assert list(temporary(clone).iterdir()) == []
