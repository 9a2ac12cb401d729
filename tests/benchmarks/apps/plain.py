"""Celery without this library: tasks with the options of a step."""

from typing import Any

import redis
import timed as timed
from celery import signals
from deployed import make_app
from sqlalchemy import BigInteger, Column, MetaData, String, Table, create_engine, insert, select, update

app = make_app()
if (app.conf.broker_read_url or "").startswith("sagas-"):
    import celery_sagas  # noqa: F401 - for its transport
client: Any = None
engine: Any = None
counters = Table("by_hand", MetaData(), Column("name", String(255), primary_key=True), Column("value", BigInteger))


@signals.worker_process_init.connect
@signals.worker_ready.connect
def connect(**_: object) -> None:
    """Make this process's clients."""
    global client, engine
    if app.conf.broker_url.startswith("redis"):
        client = redis.Redis.from_url(app.conf.broker_url)
    if app.conf.saga_backend.startswith("postgresql"):
        engine = create_engine(app.conf.saga_backend.replace("postgresql://", "postgresql+psycopg://"))
        counters.metadata.create_all(engine)


@app.task(name="plain.add", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def add(name: str, amount: int) -> None:
    """Do nothing."""


@app.task(name="plain.count", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def count(name: str, amount: int) -> None:
    """Do what a counter does, without any promise."""
    key = f"{app.conf.task_default_queue}:{name}"
    value = int(client.get(key) or 0)
    client.set(key, value + amount)


@app.task(name="plain.locked", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def locked(name: str, amount: int) -> None:
    """Do what a counter does, safe from other messages, though not from its own repeat."""
    key = f"{app.conf.task_default_queue}:{name}"
    with client.lock(f"{key}:lock", timeout=30):
        client.set(key, int(client.get(key) or 0) + amount)


@app.task(name="plain.rows", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def rows(name: str, amount: int) -> None:
    """Do it in a transaction, with SQLAlchemy Core."""
    key = f"{app.conf.task_default_queue}:{name}"
    own = counters.c.name == key
    with engine.begin() as connection:
        value = connection.execute(select(counters.c.value).where(own).with_for_update()).scalar()
        if value is None:
            connection.execute(insert(counters).values(name=key, value=amount))
        else:
            connection.execute(update(counters).where(own).values(value=value + amount))
