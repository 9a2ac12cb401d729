"""The worker: ``celery worker`` in a process of its own, which ends with this one."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from example_project.premises import Premises

#: Seconds that it may take to finish what it has begun.
_TIMEOUT_S = 15


class ShopError(Exception):
    """Raised when the shop cannot go on; the text says why."""


class Worker:
    """A real Celery worker. Nothing but the process that this object started is ever stopped."""

    def __init__(self, premises: Premises, concurrency: int, deadline: float) -> None:
        self._ready, self._log, self._deadline = premises.ready, premises.folder / "worker.log", deadline
        self._environment = {**os.environ, "TMPDIR": str(premises.folder)}  # what a killed worker leaves is removed with it
        self._command = [sys.executable, "-m", "celery", "--app", "example_project.app", "worker"]
        self._command += [f"--concurrency={concurrency}", f"--hostname={premises.name}@%h", "--loglevel=INFO"]
        self._command += ["--without-mingle", "--without-gossip", "--without-heartbeat"]
        self._command += [f"--pidfile={premises.folder / 'worker.pid'}"]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C is for this process, which then stops the worker in good order.
            self._process = subprocess.Popen(  # noqa: S603
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ask it to stop, and insist if it does not."""
        self._process.terminate()
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TIMEOUT_S if error is None else 3)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own
                self._process.wait()

    def wait_until_ready(self) -> None:
        """Return when it takes messages."""
        while not self._ready.exists():
            self.check()
            time.sleep(0.05)

    def check(self) -> None:
        """Raise if the worker has ended, or time has run out."""
        if (code := self._process.poll()) is not None:
            raise ShopError(f"The worker ended with exit code {code}. {self._tail()}")
        if time.monotonic() > self._deadline:
            raise ShopError(f"Time has run out; --timeout gives more of it. {self._tail()}")

    def _tail(self, lines: int = 20) -> str:
        log = self._log.read_text(errors="replace").splitlines()
        return "\n".join(["The last lines of its log:", *(f"    {line}" for line in log[-lines:])])
