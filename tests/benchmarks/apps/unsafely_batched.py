"""The same with celery-batches, whose batches are lost with their worker."""

import time
from typing import Any

from celery_batches import Batches
from deployed import make_app, note

app = make_app()


@app.task(name="batched.collect", base=Batches, flush_every=100, flush_interval=1, acks_late=True, ignore_result=True)
def collect(requests: Any) -> None:
    """Do nothing with a batch."""
    note("batches", f"{time.time()} {len(requests)}")
