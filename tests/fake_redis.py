"""fakeredis behind a socket, so that our own client talks to it as to any server."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fakeredis
from fakeredis._commands import command
from fakeredis._socket import FakeSocket
from redis.exceptions import ResponseError

from tests.servers import unique

#: What a worker looks at before it starts. fakeredis knows no ``INFO``.
_INFO = {
    "redis_version": "7.0.15",
    "redis_mode": "standalone",
    "run_id": unique("fake"),
    "process_id": "1",
    "role": "master",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
    "loading": "0",
    "aof_enabled": "1",
    "rdb_changes_since_last_save": "0",
    "cluster_enabled": "0",
}


@command((), (bytes,))
def info(self: Any, *sections: bytes) -> bytes:
    """Answer ``INFO``, whatever the sections."""
    return "".join(f"{name}:{value}\r\n" for name, value in _INFO.items()).encode()


FakeSocket.info = info  # type: ignore[attr-defined]

#: The module of fakeredis whose handler reads the replies for a client.
_handler: Any = sys.modules[fakeredis.TcpFakeServer.__module__]


class _Connection(_handler.FakeRedisConnection):  # type: ignore[misc]
    """Returns errors as replies: fakeredis closes the connection at one that is raised, which no server does."""

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        """Read a reply."""
        try:
            return super().read_response(*arguments, **options)
        except ResponseError as exc:
            return exc


_handler.FakeRedisConnection = _Connection


@contextmanager
def running() -> Iterator[str]:
    """Run a fake until the end of the block; yield its URL."""
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0), server_version=(7, 0))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
