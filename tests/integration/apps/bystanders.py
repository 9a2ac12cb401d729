"""A worker's app that imports no saga, although messages to one come to it, and has a task of its own."""

from deployed import make_app, note

import celery_sagas  # noqa: F401 - for its bootsteps

app = make_app()


@app.task(name="bystander.work", acks_late=True)
def work(name: str) -> None:
    note("worked", name)
