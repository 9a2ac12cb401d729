"""A step that is asked, and a plain task whose result is waited for."""

from deployed import make_app

from celery_sagas import Saga

app = make_app()


class Counter(Saga, correlate_by="name"):
    name: str
    value: int = 0


@Counter.starts
def add(counter: Counter, name: str, amount: int) -> int:
    counter.value += amount
    return counter.value


@app.task(name="plain.add", acks_late=True, reject_on_worker_lost=True, ignore_result=False)
def plain(name: str, amount: int) -> int:
    return amount
