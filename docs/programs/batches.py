"""The function of a batch raises once: with celery-batches, which needs Celery below 5.7, and with an aggregator."""

from celery import Celery
from celery_batches import Batches, SimpleRequest
from workers import FOLDER, Worker, note, noted, settings, until

from celery_sagas import Batch, aggregator

app = Celery("batches")
app.conf.update(settings(saga_backend=f"sqlite:///{FOLDER}/sagas.sqlite3", saga_relay_interval=0.1))


@app.task(base=Batches, flush_every=3, flush_interval=60, acks_late=True)
def insert(requests: list[SimpleRequest]) -> None:
    store("celery-batches", [request.args[0] for request in requests])


@aggregator(name="collect", size=3, retry_backoff=False, default_retry_delay=0)
def collect(batch: Batch[int]) -> None:
    store("an aggregator", list(batch))


def store(how: str, items: list[int]) -> None:
    """Fail the first time, as a database does that is restarted."""
    note(f"tried with {how}")
    if noted(f"tried with {how}") == 1:
        raise ConnectionError("the database is away")
    for _ in items:
        note(f"stored with {how}")


def main() -> None:
    with Worker("batches"):
        for number in range(3):
            insert.delay(number)
            collect.delay(number)
        until(lambda: noted("tried with celery-batches") > 0 and noted("stored with an aggregator") == 3)
    with Worker("batches"):  # all that the first one has not acknowledged comes again
        for number in range(3):
            insert.delay(number)
        until(lambda: noted("stored with celery-batches") > 0)
    print(f"sent with celery-batches: 6, stored: {noted('stored with celery-batches')}")
    print(f"sent with an aggregator: 3, stored: {noted('stored with an aggregator')}")


if __name__ == "__main__":
    main()
