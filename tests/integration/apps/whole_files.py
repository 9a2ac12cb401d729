"""kombu's filesystem transport, fixed: a message is in its queue when all of it is written.

Otherwise a worker may read it before, and end: on a busy machine soon enough.
"""

from pathlib import Path
from time import monotonic_ns
from typing import Any
from uuid import uuid4

from kombu.transport import filesystem
from kombu.utils.json import dumps


def put(channel: Any, queue: str, message: Any, **_: Any) -> None:
    """Put a message into a queue."""
    folder, name = Path(channel.data_folder_out), f"{monotonic_ns() // 1000}_{uuid4()}"
    unfinished = folder / f"{name}.unfinished"
    unfinished.write_text(dumps(message))
    unfinished.rename(folder / f"{name}.{queue}.msg")


filesystem.Channel._put = put
