"""Celery without this library: tasks with the options of a step."""

from typing import Any

import redis
import timed as timed
from celery import signals
from deployed import make_app

app = make_app()
client: Any = None


@signals.worker_process_init.connect
@signals.worker_ready.connect
def connect(**_: object) -> None:
    """Make this process's client."""
    global client
    client = redis.Redis.from_url(app.conf.broker_url)


@app.task(name="plain.add", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def add(name: str, amount: int) -> None:
    """Do nothing."""


@app.task(name="plain.count", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def count(name: str, amount: int) -> None:
    """Do what a counter does, without any promise."""
    key = f"{app.conf.task_default_queue}:{name}"
    value = int(client.get(key) or 0)
    client.set(key, value + amount)
