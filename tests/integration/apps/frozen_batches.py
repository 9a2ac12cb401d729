"""The aggregator of ``batches``, whose function stops its own process the first time, or outlives its first lease."""

import os
import signal
import time

from deployed import FOLDER, first_time, make_app, note

from celery_sagas import Batch, aggregator

app = make_app()


@aggregator(name="frozen.freeze", within=0.1)
def freeze(batch: Batch[int]) -> None:
    """Stop this process, so that nobody renews the lease; the test has it go on."""
    note("batches", f"begin {os.getpid()} {list(batch)}")
    if first_time("frozen"):
        note("frozen", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)


@aggregator(name="frozen.slow", within=0.1)
def slow(batch: Batch[int]) -> None:
    """Go on until the test has seen that the lease was renewed."""
    note("slow", f"{list(batch)}")
    while not (FOLDER / "renewed").exists():
        time.sleep(0.02)
