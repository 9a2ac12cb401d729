"""When the processes of a worker completed tasks, told when they end."""

import time
from pathlib import Path

from celery import signals
from deployed import note

_first = _last = 0.0
_count = 0


@signals.task_postrun.connect
def complete(**_: object) -> None:
    """Note the time in memory."""
    global _first, _last, _count
    _last = time.time()
    _first = _first or _last
    _count += 1


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def tell(**_: object) -> None:
    """Tell what this process has done, and how large it has become."""
    if _count:
        note("completed", f"{_first} {_last} {_count}")


def resident_kib() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
