"""Real Celery workers for the programs of these pages: start one, kill one, wait for something."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

#: Where Redis is, whose keys of this run have a prefix of their own: the workers have the same one.
BROKER = os.environ.get("BROKER_URL", "redis://localhost:6379/0")
RUN = os.environ.setdefault("RUN", f"run-{uuid.uuid4().hex[:8]}")
FOLDER = Path(os.environ.setdefault("FOLDER", tempfile.mkdtemp(prefix="celery-sagas-")))
DEADLINE_S = 120
#: After so many seconds the broker delivers a message again that nobody has acknowledged: the next worker that starts gets it.
VISIBILITY_S = 0.5


def settings(**more: object) -> dict[str, object]:
    """Return Celery's settings of a program."""
    options = {"global_keyprefix": f"{RUN}-", "visibility_timeout": VISIBILITY_S}
    return {"broker_url": BROKER, "broker_transport_options": options, "worker_prefetch_multiplier": 16, **more}


class Worker:
    """One ``celery worker`` of an app, with two processes in its pool."""

    def __init__(self, app: str, *options: str) -> None:
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-c", "2", "-l", "INFO", "-n", uuid.uuid4().hex]
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self._log = FOLDER / f"{uuid.uuid4().hex}.log"
        began = time.monotonic()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *quiet, *options], cwd=Path(__file__).parent, stdout=log, stderr=log, process_group=0
            )
        try:
            until(lambda: " ready." in self._log.read_text(), lambda: self._log.read_text())
        except TimeoutError:
            self.kill()
            raise
        #: How long it took to start.
        self.start_s = time.monotonic() - began

    def received(self, task: str) -> int:
        """Count the messages of a task that it has received."""
        return len(re.findall(rf"Task {task}\[\S+\] received", self._log.read_text()))

    @property
    def is_killed(self) -> bool:
        """Whether it was killed by a signal, such as SIGKILL."""
        return (self._process.poll() or 0) < 0

    def kill(self) -> None:
        """End it with its pool, as a container ends that has run out of memory, or a machine."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def until(condition: Callable[[], bool], otherwise: Callable[[], object] = lambda: "it took too long") -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise())
        time.sleep(0.02)


def note(what: str) -> None:
    """Note what a task has done to the world outside."""
    with (FOLDER / "notes").open("a") as notes:
        notes.write(f"{what}\n")


def noted(what: str) -> int:
    """Count how often something was noted."""
    notes = FOLDER / "notes"
    return notes.read_text().splitlines().count(what) if notes.exists() else 0


def ask(what: str) -> None:
    """Stand for a request to another system: note it, and wait for the answer as long as that is held."""
    note(what)
    until(lambda: noted(f"answered: {what}") == noted(f"held: {what}"))
