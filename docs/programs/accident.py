"""A worker that imports this is killed when one of its tasks is about to publish a message."""

import os
import signal

from celery import signals


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Have the processes of the pool lay the trap: what the main process publishes is not meant."""
    signals.before_task_publish.connect(kill, weak=False)


def kill(**_: object) -> None:
    """Kill the whole worker."""
    os.killpg(0, signal.SIGKILL)
