"""RabbitMQ servers of our own, to be stopped, killed and started again: nodes beside the one that may run on this machine."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from kombu.exceptions import OperationalError

from tests import servers
from tests.processes import HOST, PEERS, OwnServer, free_port, leash
from tests.waiting import wait_until

#: Seconds that a node may take to start, or a command of its: a virtual machine each, which a busy machine is slow to load.
_TIMEOUT_S = 180.0
_REASON = "no rabbitmq-server to start servers of our own from (Debian: apt-get install rabbitmq-server)"
#: Debian's, behind a wrapper that works as one user and with one folder alone.
_OF_DEBIAN = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def require_program() -> str:
    """Return the path of ``rabbitmq-server``; without one skip or fail the test."""
    return str(_OF_DEBIAN) if _OF_DEBIAN.exists() else shutil.which("rabbitmq-server") or servers.absent(_REASON)


class RabbitServer(OwnServer):
    """One RabbitMQ node, process after process, on one port and in one folder, without plugins."""

    def __init__(self, program: str) -> None:
        self.port = free_port()
        self._program = program
        super().__init__("rabbitmq")
        (self.folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = {HOST}:{self.port}\n")
        (self.folder / "plugins").write_text("[].\n")

    @property
    def url(self) -> str:
        """Its URL."""
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    @property
    def node(self) -> str:
        """Its name in a cluster."""
        return f"celery-sagas-{self.port}@localhost"

    def start(self) -> Self:
        """Start it, and wait until it takes connections.

        Raises:
            RuntimeError: It ended.
        """
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*leash(), self._program],
                env={**os.environ, **self._environment()},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        wait_until(self._is_ready, lambda: f"an answer of rabbitmq-server:\n{self.log}", _TIMEOUT_S)
        return self

    def limit_memory(self, *limit: str) -> None:
        """Give it another limit, in the words of ``rabbitmqctl``; what is above has it take no messages (a memory alarm)."""
        command = [str(Path(self._program).parent / "rabbitmqctl"), "set_vm_memory_high_watermark", *limit]
        environment = {**os.environ, **self._environment()}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=_TIMEOUT_S)

    def start_beside(self, other: "RabbitServer") -> Self:
        """Start it as a node of the cluster of another server, whose queues of the classic kind stay where they are."""
        shutil.copy(other.folder / ".erlang.cookie", self.folder)
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write("cluster_formation.peer_discovery_backend = classic_config\n")
            for number, node in enumerate((other.node, self.node), start=1):
                config.write(f"cluster_formation.classic_config.nodes.{number} = {node}\n")
        return self.start()

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "HOME": str(folder),  # of the node's cookie
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self.port + PEERS),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",  # one core, and none that is busy with waiting
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the server, and signals reach it
        }

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"rabbitmq-server ended:\n{self.log[-2_000:]}")
        try:
            servers.check_amqp(self.url)
        except (OSError, OperationalError):
            return False
        return True


@contextmanager
def running() -> Iterator[RabbitServer]:
    """Run a server until the end of the block."""
    with closing(RabbitServer(require_program())) as server:
        yield server.start()
