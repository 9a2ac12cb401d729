"""Groups of numbers, all of them due at once."""

import time

from deployed import make_app, note

from celery_sagas import Batch, aggregator

app = make_app()


def group_of(number: int) -> str:
    """Return the group of a number: ten numbers have one."""
    return str(number // 10)


@aggregator(name="grouped.collect", group_by=group_of, within=1)
def collect(batch: Batch[int]) -> None:
    note("groups", f"{time.time()} {len(batch)}")
