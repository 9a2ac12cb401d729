"""When the processes of a worker began and completed tasks, noted when they end.

A task that succeeds is complete. ``task_postrun`` tells less: a step whose commit meets a conflict in a batch runs again there,
between signals of its own, and ``task_success`` is sent once for each message that was handled.
"""

import time
from pathlib import Path

from celery import signals
from deployed import note

_began = _last = 0.0
_count = 0


@signals.task_prerun.connect
def begin(**_: object) -> None:
    """Note the time of the first one in memory."""
    global _began
    _began = _began or time.time()


@signals.task_success.connect
def complete(**_: object) -> None:
    """Note the time in memory."""
    global _last, _count
    _last = time.time()
    _count += 1


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def tell(**_: object) -> None:
    """Tell what this process has done."""
    if _count:
        note("completed", f"{_began} {_last} {_count}")


def resident_kib() -> int:
    """Return the resident memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
