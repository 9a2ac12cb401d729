"""``celery sagas relay``."""

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_sagas import Saga
from celery_sagas.worker.process.relay import RelayThreads, relay_of
from celery_sagas.worker.runtime import runtime_of
from tests.apps import NewApp, Worker
from tests.cli.test_describe import run
from tests.waiting import DEADLINE_S, wait_until


@pytest.fixture
def served(new_app: NewApp, tmp_path: Any) -> Celery:
    """An app with a saga, on a backend that several processes may share."""
    app = new_app(saga_relay_interval=0.01, saga_relay=False)
    app.conf.saga_backend = f"sqlite:///{tmp_path}/sagas.sqlite3"
    return app


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """The command leaves no handler of its own behind."""
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers


def interrupt(app: Celery, number: int, when: Any) -> threading.Thread:
    """Send this process a signal once a relay runs and a condition holds."""

    def wait_and_send() -> None:
        wait_until(lambda: relay_of(app) is not None and when(), "a relay that runs")
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait_and_send)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_relays_until_a_signal_comes(served: Celery, at_one_time: None, number: int) -> None:
    """With a worker's relay off: this is what runs in its place."""

    @served.task(name="plain")
    def plain() -> None: ...

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    @Order.starts
    def place(order: Order, order_id: str) -> None:
        order.send(plain.si(), after=0.02)

    runtime_of(served).prepare(processes=1)
    place("42")
    thread = interrupt(served, number, lambda: relay_of(served).tally.sent)  # type: ignore[union-attr]
    result = run(served, "relay")
    thread.join()

    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == ["The relay runs.", "The relay ends.", "The relay has ended."]
    assert [message.task for message in Worker(served).waiting()] == ["plain"]


def test_reports_its_last_sweep(served: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No worker is there to ask."""
    monkeypatch.setattr(sys.modules["celery_sagas.cli.relay"], "_REPORT_S", 0.2)
    caplog.set_level(logging.INFO, "celery_sagas")
    told = re.compile(r"last \d+ s ago: 0 messages were sent")
    thread = interrupt(served, signal.SIGTERM, lambda: len(told.findall(caplog.text)) > 1)

    result = run(served, "relay")

    thread.join()
    assert result.exit_code == 0, result.output


def test_prepares_the_backend(served: Celery) -> None:
    """As a worker does: it may be the first."""

    class Order(Saga, correlate_by="order_id"):
        order_id: str

    thread = interrupt(served, signal.SIGTERM, lambda: relay_of(served).tally.sweeps)  # type: ignore[union-attr]
    result = run(served, "relay")
    thread.join()

    assert result.exit_code == 0, result.output
    assert Order.find("42") is None


def test_backend_of_one_process(app: Celery) -> None:
    """It has nothing that another process could relay."""
    result = run(app, "relay")

    assert result.exit_code == 1
    assert "processes" in result.output


def test_eager_mode(eager: Celery) -> None:
    """Nothing waits there."""
    result = run(eager, "relay")

    assert result.exit_code == 1
    assert "task_always_eager" in result.output


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_relay_that_ends_by_itself(served: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever supervises it is to know."""
    monkeypatch.setattr(RelayThreads, "_sweep", lambda self, number: sys.exit())
    result = run(served, "relay")

    assert result.exit_code == 1
    assert "ended by itself" in result.output
    assert "the relay has ended by itself" in caplog.text


def test_relay_that_does_not_end(served: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, and that is an error."""
    stop = RelayThreads.stop
    monkeypatch.setattr(RelayThreads, "stop", lambda self, timeout_s: not stop(self, DEADLINE_S))
    thread = interrupt(served, signal.SIGTERM, lambda: True)
    result = run(served, "relay")
    thread.join()

    assert result.exit_code == 1
    assert "did not end in time" in result.output
