"""A gate between what a thread does and the forks of its process."""

import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from celery_sagas.worker import forks
from celery_sagas.worker.forks import ForkGate
from tests.waiting import wait_until


@pytest.fixture
def gate() -> ForkGate:
    """A gate of its own, which no fork of this process passes."""
    return ForkGate()


def in_thread(function: Callable[[], None]) -> threading.Thread:
    """Run something in a thread."""
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_fork_waits_until_the_work_is_done(gate: ForkGate) -> None:
    """A lock that is held at the fork is held for ever in the child."""
    events: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with gate.working():
            entered.set()
            leave.wait()
            events.append("worked")

    def fork() -> None:
        gate.before_fork()
        events.append("forked")
        gate.after_in_parent()

    worker = in_thread(work)
    entered.wait()
    forker = in_thread(fork)
    wait_until(lambda: gate._forking, "a fork that waits")
    leave.set()
    worker.join()
    forker.join()

    assert events == ["worked", "forked"]


def test_work_waits_for_a_fork(gate: ForkGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for one that waits itself: a thread which works all the time would let none pass."""
    events: list[str] = []
    looks: list[float] = []
    monkeypatch.setattr(forks, "time", SimpleNamespace(sleep=lambda s: (looks.append(s), time.sleep(s))))

    def work() -> None:
        with gate.working():
            events.append("worked")

    gate.before_fork()
    worker = in_thread(work)
    wait_until(lambda: looks or events, "work that waits")
    events.append("forked")
    gate.after_in_parent()
    worker.join()

    assert events == ["forked", "worked"]


def test_fork_waits_for_a_bounded_time(gate: ForkGate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever works for so long waits for a server; the worker's own loop does not."""
    monkeypatch.setattr(forks, "_PATIENCE_S", 0.02)
    with gate.working():
        fork = in_thread(lambda: (gate.before_fork(), gate.after_in_parent())[0])
        fork.join()
    with gate.working():
        pass


def test_child_begins_anew(gate: ForkGate) -> None:
    """Whatever its parent's threads were doing."""
    gate._working.acquire()
    gate._forking = 1

    gate.after_in_child()

    with gate.working():
        pass


def test_every_fork_passes_the_gate_of_the_process() -> None:
    """In both processes it is open afterwards."""
    pid = os.fork()
    if not pid:
        with forks.gate.working():
            os._exit(7)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    with forks.gate.working():
        pass
