"""What processes of our own need, to be started in tests: a port, and an end with the test run."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import DEADLINE_S

HOST = "127.0.0.1"
#: Below the ports that the kernel gives to clients, so that a server finds its own free when it starts again.
_PORTS = range(10_000, 22_000)
#: How far above its port a server talks to others of its kind.
PEERS = 10_000


def free_port() -> int:
    """Return a port that is free, and whose port for peers is."""
    while True:
        port = random.SystemRandom().choice(_PORTS)
        if _is_free(port) and _is_free(port + PEERS):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def leash() -> list[str]:
    """Return the words before a command that make the kernel kill it when the thread that started it ends, however it does."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


class OwnServer:
    """A server in a process and a folder of its own, which whoever derives from it starts."""

    def __init__(self, kind: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"celery-sagas-{kind}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.folder / "log").read_text(errors="replace")

    def stop(self) -> None:
        """End it in good order; what it keeps on disk is there when it starts again."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let it keep its connections, accept others, and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove what it kept."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def in_child(check: Callable[[], object]) -> bool:
    """Return what a check returns in a forked process."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
