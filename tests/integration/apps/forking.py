"""Counters in a worker whose main process has used every connection before it forks."""

import os

from celery import signals
from counters import Counter, add
from counters import app as app
from deployed import note

from celery_sagas.worker.runtime import runtime_of


@signals.worker_init.connect
def use_connections(**_: object) -> None:
    """Handle a message and publish another here, in the parent."""
    runtime_of(app).backend.prepare(create_schema=True, processes=2)
    add(name="parent", amount=1)
    assert Counter.find("parent") is not None
    runtime_of(app).publisher.publish_signature(app.signature("celery.backend_cleanup", task_id="of the parent"))


@signals.task_postrun.connect
def note_process(**_: object) -> None:
    """Note which processes there were."""
    note("processes", str(os.getpid()))
