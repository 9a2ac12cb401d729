"""An aggregator of numbered items, which notes each run of its function: when it begins, what it has got, and when it ends."""

import os
from uuid import uuid4

from deployed import first_time, make_app, note

from celery_sagas import Batch, Message, aggregator

app = make_app()

#: The largest batch, and the seconds that an item waits at most.
SIZE, WITHIN_S = 20, 1.0


class Numbered(Message):
    group: str
    number: int


@app.task(name="batches.tell", ignore_result=True)
def tell(number: int) -> None:
    """Note what comes after an item was buffered."""
    note("told", str(number))


@aggregator(name="batches.collect", size=SIZE, within=WITHIN_S, group_by="group")
def collect(batch: Batch[Numbered]) -> None:
    run = uuid4().hex
    numbers = ",".join(str(item.number) for item in batch)
    note("batches", f"begin {run} {os.getpid()} {batch.reason} {batch.group} {numbers}")
    if batch.group.endswith("release") and first_time(f"{batch.group} failed"):
        raise RuntimeError(batch.group)
    assert all(item.group == batch.group for item in batch)
    note("batches", f"end {run}")
