"""The counters of the integration tests, timed."""

import timed as timed
from celery import signals
from counters import app as app
from deployed import note
from timed import resident_kib

#: Between two looks at the memory. Tasks.
EVERY = 250

_tasks = 0


@signals.task_postrun.connect
def weigh(**_: object) -> None:
    """Note this process's memory now and then."""
    global _tasks
    _tasks += 1
    if _tasks % EVERY == 0:
        note("resident", str(resident_kib()))
