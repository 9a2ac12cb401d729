"""A step, and a plain task with the same options and the same message."""

from deployed import make_app

from celery_sagas import Saga

app = make_app()


class Counter(Saga, correlate_by="name"):
    name: str
    value: int = 0
    count: int = 0


@Counter.starts
def add(counter: Counter, name: str, amount: int) -> None:
    counter.value += amount
    counter.count += 1


@app.task(name="plain", acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def plain(name: str, amount: int) -> None:
    """Do nothing."""
