"""A broker that needs no server: messages are files in a folder, by kombu's filesystem transport, with two things fixed."""

from pathlib import Path
from time import monotonic_ns
from typing import Any
from uuid import uuid4

from kombu.transport import filesystem
from kombu.utils.json import dumps

#: Seconds that a worker may be blind to everything but messages, such as the wish that it should stop.
_LONGEST_WAIT_S = 0.5


class Channel(filesystem.Channel):
    """Puts a message into its queue when all of it is written: kombu's lets another process read, and lose, half of it."""

    def _put(self, *args: Any, **kwargs: Any) -> None:
        queue, message = args
        folder, name = Path(self.data_folder_out), f"{monotonic_ns() // 1000}_{uuid4()}"
        unfinished = folder / f"{name}.unfinished"
        unfinished.write_text(dumps(message))
        unfinished.rename(folder / f"{name}.{queue}.msg")


class Transport(filesystem.Transport):
    """kombu's filesystem transport, with that channel."""

    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver a message, or time out."""
        timeout = None if timeout is None else min(timeout, _LONGEST_WAIT_S)
        super().drain_events(connection, timeout=timeout, **kwargs)
