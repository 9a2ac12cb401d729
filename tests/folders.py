"""Folders for what no test needs after a crash of the machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

#: Linux keeps it in memory, where nobody waits for a disk.
_IN_MEMORY = Path("/dev/shm")


@contextmanager
def in_memory(otherwise: Path) -> Iterator[Path]:
    """Make a folder in memory until the end of the block; take the other one where there is no such place."""
    if not os.access(_IN_MEMORY, os.W_OK):
        yield otherwise
        return
    with TemporaryDirectory(prefix="celery-sagas-", dir=_IN_MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
