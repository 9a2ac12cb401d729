"""An aggregator whose function always fails, or asks for a retry, while many batches wait."""

from typing import Any

from deployed import make_app, note

from celery_sagas import Batch, aggregator

app = make_app()


@aggregator(name="failing.raise", size=10)
def fail(batch: Batch[int]) -> None:
    note("calls", ",".join(map(str, batch)))
    raise RuntimeError("the service is away")


@aggregator(name="failing.retry", size=10, bind=True)
def again(self: Any, batch: Batch[int]) -> None:
    note("calls", ",".join(map(str, batch)))
    raise self.retry(countdown=3)
