"""Parcels: plain tasks that are acknowledged late, beside the counters."""

import os
import time
from typing import Any

from celery import signals
from counters import app as app
from deployed import FOLDER, note

from celery_sagas.worker.transport import receiver

receiver.RECHECK_S = float(os.environ.get("CELERY_SAGAS_TEST_RECHECK_S", receiver.RECHECK_S))
#: How long the worker takes to hand a message to its pool: time for others to come between two messages. Seconds.
HANDING_OVER_S = float(os.environ.get("CELERY_SAGAS_TEST_HANDING_OVER_S", "0"))
LATE = {"bind": True, "acks_late": True, "reject_on_worker_lost": True, "ignore_result": True}


@app.task(name="parcel.deliver", **LATE)
def deliver(task: Any, name: str) -> None:
    note("delivered", f"{name} {task.request.hostname}")


@app.task(name="parcel.hold", **LATE)
def hold(task: Any, name: str) -> None:
    """Keep a parcel until the file ``go`` is there."""
    note("held", name)
    while not (FOLDER / "go").exists():
        time.sleep(0.02)
    note("delivered", f"{name} {task.request.hostname}")


@signals.task_received.connect
def hand_over(**_: object) -> None:
    """Take time, once the worker has received a message."""
    if HANDING_OVER_S:
        note("handed_over", "")
        time.sleep(HANDING_OVER_S)
