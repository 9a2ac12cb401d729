"""The aggregator of ``batches``, whose function stops its own process the first time, or takes longer than its lease."""

import os
import signal
import time

from deployed import first_time, make_app, note

from celery_sagas import Batch, aggregator

app = make_app()

#: Seconds that ``slow`` takes: several leases of a second.
SLOW_S = 3.5


@aggregator(name="frozen.freeze", within=0.1)
def freeze(batch: Batch[int]) -> None:
    """Stop this process, so that nobody renews the lease; the test has it go on."""
    note("batches", f"begin {os.getpid()} {list(batch)}")
    if first_time("frozen"):
        note("frozen", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


@aggregator(name="frozen.slow", within=0.1)
def slow(batch: Batch[int]) -> None:
    """Take long, while the lease is renewed."""
    note("slow", f"{list(batch)}")
    time.sleep(SLOW_S)
