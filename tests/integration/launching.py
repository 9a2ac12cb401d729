"""Python processes that start quickly: each is forked from one that has imported what every worker imports.

A fresh interpreter needs most of a second of a core to come as far. What is forked has no app, no thread and no connection yet.
It differs from a fresh interpreter: all of them have one hash seed, no import of the library is the first one, of what the
environment tells Python itself only ``PYTHONPATH`` counts, a script's own folder is not on the path, and the interpreter is not
finalized at the end. ``tox -e chaos`` starts fresh ones alone.
"""

import atexit
import multiprocessing
import multiprocessing.util  # its own function for the exit waits for processes: it must be registered before ours
import os
import runpy
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

_SCRIPT = Path(__file__).resolve().parent / "apps" / "launched.py"
#: What is imported once, as far as it is installed. Not what reads its worker's environment at its import, nor gevent, which must
#: come first.
_PRELOADED = (
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.concurrency.prefork",
    "celery.backends.redis",
    "kombu.transport.filesystem",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "psycopg",
    "pymysql",
    "sqlalchemy.dialects.mysql",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "celery_sagas.cli",
    "celery_sagas.cli.relay",
    "celery_sagas.stores.redis.backend",
    "celery_sagas.stores.sql.backend",
    "celery_sagas.worker.process.bootsteps",
    "django.contrib.contenttypes.apps",
    "django.core.management",
    "django.db.models",
    "django.test",
)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(_PRELOADED))


class Process(Protocol):
    """What the tests need of a process: it leads a group of its own, and its standard input ends with the test's process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return its exit code, or None while it runs."""

    def write(self, line: str) -> None:
        """Write a line to its standard input."""

    def end_input(self) -> None:
        """End its standard input."""

    def kill(self) -> None:
        """End it, and all that it has started, as a crash does; return when it has ended."""


class Started:
    """A fresh Python interpreter."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], folder: Path, output: Path, errors: Path) -> None:
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        _kill_group(self.pid, self._process.kill)
        self._process.communicate()


class Forked:
    """A process that goes on as a Python interpreter would that got these arguments: ``-m`` and a module, or a script."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], folder: Path, output: Path, errors: Path) -> None:
        read, self._input = _context.Pipe(duplex=False)
        streams = {"input": read, "output": output, "errors": errors}
        launch = {"arguments": arguments, "environment": dict(environment), "folder": folder, **streams}
        options = {"init_globals": {"launch": launch}, "run_name": "launched"}
        self._code: int | None = None
        output.touch()
        errors.touch()
        self._process = _context.Process(target=runpy.run_path, args=(str(_SCRIPT),), kwargs=options, name="MainProcess")
        self._process.start()
        read.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        _forked.add(self)

    def poll(self) -> int | None:
        return self._process.exitcode if self._code is None else self._code

    def write(self, line: str) -> None:
        os.write(self._input.fileno(), f"{line}\n".encode())

    def end_input(self) -> None:
        self._input.close()

    def kill(self) -> None:
        if self._code is None:
            _kill_group(self.pid, self._process.kill)
            self._process.join()
            self._code = self._process.exitcode
            self._process.close()
            self._input.close()


_forked: weakref.WeakSet[Forked] = weakref.WeakSet()


@atexit.register
def _kill_the_rest() -> None:
    """Kill those that no test has: a process that ends waits for them, and they end when it does."""
    for process in list(_forked):
        process.kill()


def _kill_group(pid: int, kill_leader: Callable[[], None]) -> None:
    """Kill the leader of a process group, and its group if it leads one already."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        kill_leader()
