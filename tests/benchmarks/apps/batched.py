"""Batches of numbers: buffered durably, by this library; or in a worker's memory, by celery-batches."""

import time

from deployed import make_app, note

from celery_sagas import Batch, aggregator

app = make_app()

#: Items in one batch.
SIZE = 100


@aggregator(name="batched.collect", size=SIZE, within=1)
def collect(batch: Batch[int]) -> None:
    note("batches", f"{time.time()} {len(batch)}")
