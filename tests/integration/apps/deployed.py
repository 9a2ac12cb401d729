"""The app of a test's worker: configured by the test, and noting what the test wants to know."""

import faulthandler
import json
import os
import select
import signal
import threading
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import whole_files  # noqa: F401 - for its effect
from billiard.pool import Worker
from celery import Celery, signals
from celery.worker import request
from kombu.transport import redis

#: By how much this process's clock is off. Seconds.
CLOCK_OFF_S = float(os.environ.get("CELERY_SAGAS_TEST_CLOCK_OFF_S", "0"))
FOLDER = Path(os.environ["CELERY_SAGAS_TEST_FOLDER"])
faulthandler.register(signal.SIGURG, all_threads=True)  # see Worker.stacks; Celery gives others a meaning of their own


class WrongDatetime(datetime):
    """Tells the wrong time, too."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "WrongDatetime":
        return cls.fromtimestamp(time.time(), tz)


def set_clock() -> None:
    """Have this process tell a wrong time, kombu's Redis transport and what looks whether a message has expired included."""
    clock, clock_ns = time.time, time.time_ns
    time.time = redis.time = lambda: clock() + CLOCK_OFF_S  # type: ignore[attr-defined]
    time.time_ns = lambda: clock_ns() + int(CLOCK_OFF_S * 1e9)
    request.datetime = WrongDatetime  # type: ignore[misc]


if CLOCK_OFF_S:
    set_clock()

_ensure_messages_consumed = Worker._ensure_messages_consumed


def ensure_messages_consumed(process: Any, completed: int) -> bool:
    """Have a pool's process that ends look without a lock whether its results were read.

    The main process shares that lock, and waits for it indefinitely if the process is killed while it holds it. The process looks
    every tenth of a second, and a hard time limit sends SIGKILL a tenth of a second after SIGTERM. Billiard does so still while
    ``test_process_of_a_pool_that_ends_takes_a_lock_that_the_pool_takes`` in ``tests/assumptions/test_celery.py`` passes.
    """
    process.on_ready_counter = process.on_ready_counter and process.on_ready_counter.get_obj()
    return bool(_ensure_messages_consumed(process, completed))


Worker._ensure_messages_consumed = ensure_messages_consumed


def make_app(*, has_sagas: bool = True) -> Celery:
    """Return an app with the settings that the test gave; without sagas, with those of Celery alone."""
    app = Celery(os.environ.get("CELERY_SAGAS_TEST_APP", "integration"))
    settings = json.loads(os.environ["CELERY_SAGAS_TEST_SETTINGS"])
    app.conf.update({name: value for name, value in settings.items() if has_sagas or not name.startswith("saga_")})
    return app


def note(what: str, line: str) -> None:
    """Note a line under a name; one write, so that processes do not mix theirs."""
    descriptor = os.open(FOLDER / f"{what}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def first_time(what: str) -> bool:
    """Tell whether no process of this deployment has asked for this before."""
    try:
        (FOLDER / f"{what}.once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@signals.task_failure.connect
def note_failure(sender: Any = None, task_id: str = "", exception: Any = None, **_: object) -> None:
    """Note a task that failed."""
    note("failures", f"{getattr(sender, 'name', sender)}[{task_id}] {exception!r}")


@signals.worker_ready.connect
def note_ready(sender: Any, **_: object) -> None:
    """Tell the test that this worker consumes; do not outlive it."""
    if getattr(sender, "hub", None) is not None and os.environ.get("CELERY_SAGAS_TEST_MATRIX") != "full":
        wake_by_signals(sender.hub)
    threading.Thread(target=end_with_test, daemon=True).start()
    Path(os.environ["CELERY_SAGAS_TEST_READY"]).touch()


def wake_by_signals(hub: Any) -> None:
    """Have a signal that ends the worker noticed at once, until its broker is lost for the first time.

    Celery's handler sets a flag, and Python resumes the poll of the event loop (PEP 475), which may last for some seconds more.
    """
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # a signal of the pool's processes is none of its own
    hub.add_reader(read, os.read, read, 100)


def end_with_test() -> None:
    """End this worker and its pool if the test's process ends without having done so."""
    select.select([0], [], [])  # sys.stdin is closed by the pool's processes, whose copy of its lock this thread would hold
    os.killpg(os.getpid(), signal.SIGKILL)
