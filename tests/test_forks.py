"""What forks of a process wait for."""

import os
import threading
from collections.abc import Callable

import pytest

from celery_sagas.forks import FILES, WORK, ForkGate, Process
from tests.waiting import DEADLINE_S, wait_until


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
    """A lock that is held at the fork is held indefinitely in the child."""
    events: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with gate:
            entered.set()
            leave.wait()
            events.append("worked")

    def fork() -> None:
        gate.before_fork()
        events.append("forked")
        gate.after_fork()

    worker = in_thread(work)
    entered.wait()
    forker = in_thread(fork)
    wait_until(lambda: gate._forking, "a fork that waits")
    leave.set()
    worker.join()
    forker.join()

    assert events == ["worked", "forked"]


def test_work_waits_for_a_fork(gate: ForkGate) -> None:
    """Also for one that waits itself: a thread which works all the time would let none pass."""
    events: list[str] = []

    def work() -> None:
        with gate:
            events.append("worked")

    gate.before_fork()
    worker = in_thread(work)
    wait_until(lambda: gate._changed._waiters or events, "work that waits")  # type: ignore[attr-defined]
    events.append("forked")
    gate.after_fork()
    worker.join()

    assert events == ["forked", "worked"]


def test_fork_waits_for_a_bounded_time() -> None:
    """Whoever works for so long waits for a server; the worker's own loop does not."""
    gate = ForkGate(timeout_s=0.02)
    with gate:
        fork = in_thread(lambda: (gate.before_fork(), gate.after_fork())[0])
        fork.join()
    with gate:
        pass


def test_thread_that_works_does_not_wait_for_itself(gate: ForkGate) -> None:
    with gate:
        gate.before_fork()
        gate.after_fork()


def test_fork_waits_for_held_work_and_for_what_is_done_in_it() -> None:
    events: list[str] = []
    gate, begun, may_work = ForkGate(timeout_s=DEADLINE_S), threading.Event(), threading.Event()

    def work() -> None:
        with gate.held():
            begun.set()
            may_work.wait()
            with gate:
                events.append("worked")

    def fork() -> None:
        gate.before_fork()
        events.append("forked")
        gate.after_fork()

    worker = in_thread(work)
    begun.wait()
    forker = in_thread(fork)
    wait_until(lambda: gate._forking, "a fork that waits")
    may_work.set()
    worker.join()
    forker.join()

    assert events == ["worked", "forked"]


def test_interruption_that_kept_a_thread_from_leaving_is_made_good(gate: ForkGate) -> None:
    """By its next piece of work."""
    gate.__enter__()
    with gate:
        pass
    fork = in_thread(lambda: (gate.before_fork(), gate.after_fork())[0])
    fork.join(DEADLINE_S)
    assert not fork.is_alive()


def test_child_begins_anew(gate: ForkGate) -> None:
    """Another thread of the parent works, one is forking too, and one holds the lock."""
    gate._forking.add(-1)
    gate._working.add(-1)
    gate._lock.acquire()

    gate.reset()

    with gate:
        pass
    gate.before_fork()
    gate.after_fork()


def test_every_fork_passes_the_gate_of_the_process() -> None:
    """In both processes it is open afterwards."""
    pid = os.fork()
    if not pid:
        with WORK, FILES:
            os._exit(7)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 7
    with WORK, FILES:
        pass


def test_child_knows_that_it_is_one() -> None:
    process = Process()
    pid = os.fork()
    if not pid:
        os._exit(7 if process.is_child else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not process.is_child
