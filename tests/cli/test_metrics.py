"""``celery sagas metrics``."""

import os
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.runtime import runtime_of
from tests.cli.test_describe import run
from tests.integration.scraping import Sums, read, scrape
from tests.processes import HOST, free_port
from tests.waiting import wait_until


@pytest.fixture
def ordered(app: Celery) -> Celery:
    """An app with three orders, on a backend that threads share."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None: ...

    for number in range(3):
        place(str(number))
    return app


def assert_three(sums: Sums) -> None:
    assert sums("celery_sagas_up") == 1
    assert sums("celery_sagas_instances", saga="order") == 3


def test_prints_them(ordered: Celery) -> None:
    assert_three(read(run(ordered, "metrics").output))


def test_writes_a_file(ordered: Celery, tmp_path: Path) -> None:
    """Nothing else is left in its folder, and others may read it."""
    result = run(ordered, "metrics", "--textfile", str(file := tmp_path / "sagas.prom"))

    assert (result.exit_code, result.output) == (0, "")
    assert_three(read(file.read_text()))
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o644


def test_file_that_cannot_be_written(ordered: Celery, tmp_path: Path) -> None:
    result = run(ordered, "metrics", "--textfile", str(tmp_path / "missing" / "sagas.prom"))

    assert result.exit_code == 1
    assert "sagas.prom cannot be written: No such file or directory." in result.output


def test_serves_them_until_a_signal_comes(ordered: Celery) -> None:
    address, found = f":{free_port()}", list[Sums]()
    before = signal.getsignal(signal.SIGTERM)

    def look() -> None:
        try:
            found.append(wait_until(lambda: _scraped(address), "a scrape"))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=look)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # should the command end before
    try:
        thread.start()
        result = run(ordered, "metrics", "--listen", address)
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    assert (result.exit_code, result.output) == (0, f"Metrics are served on {address}.\n")
    assert_three(found[0])


def _scraped(address: str) -> Sums | None:
    try:
        return scrape(address)
    except OSError:
        return None


def test_port_that_is_taken(ordered: Celery) -> None:
    address = f"{HOST}:{free_port()}"
    with closing(socket.create_server((HOST, int(address.rpartition(":")[2])))):
        result = run(ordered, "metrics", "--listen", address)

    assert result.exit_code == 1
    assert f"Error: the metrics cannot be served on {address}: Address already in use." in result.output


@pytest.mark.parametrize("words", [["--listen", "9557"], ["--listen", ":9557", "--textfile", "f"]], ids=" ".join)
def test_wrong_options(ordered: Celery, words: list[str]) -> None:
    assert run(ordered, "metrics", *words).exit_code == 2


def test_backend_that_is_away_is_a_gauge(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    class Order(Saga, correlate_by="order_id"):
        order_id: str

    app.conf.saga_backend = "redis://127.0.0.1:1/0"
    runtime_of(app).close()
    result = run(app, "metrics")

    assert result.exit_code == 0
    sums = read(result.output)
    assert sums("celery_sagas_up") == 0
    assert "celery_sagas_outbox_rows{" not in result.output
