"""Celery without this library: a task that does nothing, with the options of a step."""

import timed as timed
from deployed import make_app

app = make_app()


@app.task(name="plain.add", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def add(name: str, amount: int) -> None:
    """Do nothing."""
