"""A PgBouncer of our own, which gives each transaction any of a few connections."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from tests import servers
from tests.processes import HOST, OwnServer, free_port, leash
from tests.waiting import wait_until

#: Connections to each database: fewer than there are clients.
_CONNECTIONS = 3


class PgBouncer(OwnServer):
    """One ``pgbouncer`` before a database, which asks its clients for no password."""

    def __init__(self, program: str, url: str) -> None:
        super().__init__("pgbouncer")
        port, target = free_port(), make_url(url)
        self.url = target.set(host=HOST, port=port).render_as_string(hide_password=False)
        password = f" password={target.password}" if target.password else ""
        lines = [
            "[databases]",
            f"* = host={target.host} port={target.port or 5432} user={target.username}{password}",
            "[pgbouncer]",
            f"listen_addr = {HOST}",
            f"listen_port = {port}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
            f"default_pool_size = {_CONNECTIONS}",
        ]
        (self.folder / "pgbouncer.ini").write_text("\n".join(lines))
        self.folder.chmod(0o755)  # it reads its file as that user
        with (self.folder / "log").open("wb") as log:
            identity = ["-u", "nobody"] if os.geteuid() == 0 else []  # it refuses to be root
            command = [*leash(), program, *identity, "pgbouncer.ini"]
            self._process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(self._is_ready, lambda: f"an answer of pgbouncer:\n{self.log}")

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"pgbouncer ended:\n{self.log}"
        try:
            servers.check_sql(self.url)
        except OperationalError:
            return False
        return True


@contextmanager
def running(url: str) -> Iterator[PgBouncer]:
    """Run one before this database until the end of the block."""
    program = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin") or shutil.which("pgbouncer")
    if not program:
        servers.absent("no pgbouncer: install one (Debian: sudo apt-get install pgbouncer)")
    with closing(PgBouncer(program, url)) as server:
        yield server
