"""What it costs that messages, and the commits of steps and batches, share a transaction with rows of the user's."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from celery import Celery
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from celery_sagas import send
from celery_sagas.worker.runtime import close_runtime, runtime_of
from tests import servers
from tests.benchmarks.conftest import APPS, Report
from tests.benchmarks.rates import in_turn, middle, rate, ratio, spread
from tests.integration import worker
from tests.integration.conftest import Deploy
from tests.integration.worker import Deployment
from tests.waiting import wait_until

#: Transactions.
SENT = 1_000
#: Milliseconds that a message may take in its transaction, and from the commit until it is published.
IN_TRANSACTION_MS, PUBLISHED_MS = 0.5, 3.0
#: Between two looks at confirmations.
_POLL_S = 0.0005
#: Rates as a part of what users would write by hand, at least.
STEPS, BATCHES = 0.8, 0.9
#: A worker has so many processes.
PROCESSES, ITEMS = 2, 10_000


class Times(NamedTuple):
    """Seconds: for a statement of the user's, for a message, and from the commit until that is published, and confirmed.

    RabbitMQ confirms a message once it is on its disk; consumers get it before.
    """

    statement: float
    message: float
    published: float
    confirmed: float


@pytest.mark.parametrize("broker", ["rabbitmq", "redis"])
def test_a_message_that_is_sent_with_a_transaction(
    request: pytest.FixtureRequest, report: Report, postgresql_url: str, broker: str
) -> None:
    with _app(str(request.getfixturevalue(f"{broker}_url")), postgresql_url) as app, _table(postgresql_url) as engine:
        times = [_sent(app, engine, number) for number in range(SENT)][SENT // 10 :]
    statement, message, published, confirmed = (1000 * statistics.median(each) for each in zip(*times, strict=True))
    report(
        f"send(using=) in the transaction, against an INSERT, {broker} broker",
        f"{message / statement:.2f}  ({message:.2f} against {statement:.2f} ms)",
        f"<= {IN_TRANSACTION_MS} ms",
        message <= IN_TRANSACTION_MS,
    )
    report(
        f"from the commit until it is published, {broker} broker",
        f"{published:.2f} ms  ({confirmed:.2f} ms until it is confirmed)",
        f"<= {PUBLISHED_MS} ms",
        published <= PUBLISHED_MS,
    )


def _sent(app: Celery, engine: Engine, number: int) -> Times:
    """Write a row, and send a message with it."""
    signature, publisher, committed = app.tasks["count"].si("name", number), runtime_of(app).publisher, list[float]()
    with Session(engine) as session:
        event.listen(session, "after_commit", lambda _: committed.append(time.perf_counter()))
        session.execute(text("SELECT 1"))  # what it takes to begin is no part of the first statement
        began = time.perf_counter()
        session.execute(text("INSERT INTO written (number) VALUES (:number)"), {"number": number})
        written = time.perf_counter()
        send(signature, using=session)
        sent = time.perf_counter()
        session.commit()
        published = time.perf_counter()
        while publisher.awaited():
            time.sleep(_POLL_S)
            publisher.collect()
        return Times(written - began, sent - written, published - committed[0], time.perf_counter() - committed[0])


@contextmanager
def _table(url: str) -> Iterator[Engine]:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE written (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, number bigint)"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE written"))
    engine.dispose()


def _count(name: str, amount: int) -> None:
    """Do nothing: nobody consumes."""


@contextmanager
def _app(broker: str, backend: str) -> Iterator[Celery]:
    app = Celery(servers.unique("app"), broker=broker, set_as_current=True)
    app.conf.update(saga_backend=backend, task_default_queue=servers.unique("sent"), saga_prefix=servers.unique())
    app.task(_count, name="count", ignore_result=True)
    app.finalize()
    runtime_of(app).prepare(processes=1)
    yield app
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_delete(app.conf.task_default_queue)
        channel.exchange_delete(app.conf.task_default_queue)
    close_runtime(app)
    app.close()


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_a_step_that_writes_a_row_against_a_task_that_does(deploy: Deploy, report: Report, broker: str) -> None:
    steps, plain = (_deployed(deploy, app, broker) for app in ("steps_that_write", "plain_that_write"))
    by_hand, done = in_turn([partial(rate, plain, "plain.write", "prefork"), partial(rate, steps, "counter.write", "prefork")])
    reached = ratio(done, by_hand)
    report(
        f"step with a row against a task with a row, postgresql, {broker} broker",
        f"{reached:.2f}  ({middle(done)} of {middle(by_hand)} /s; {spread(done, by_hand)})",
        f">= {STEPS}",
        reached >= STEPS,
        reached,
    )


def test_batches_that_write_rows_with_the_removal_against_before(deploy: Deploy, report: Report) -> None:
    deployment = _deployed(deploy, "batches_that_write", "redis")
    before, with_it = in_turn([partial(_flushed, deployment, how) for how in ("before_removal", "with_removal")])
    reached = ratio(with_it, before)
    report(
        "items with rows by transaction= against a session of one's own",
        f"{reached:.2f}  ({middle(with_it)} of {middle(before)} /s; {spread(with_it, before)})",
        f">= {BATCHES}",
        reached >= BATCHES,
        reached,
    )


def _deployed(deploy: Deploy, app: str, broker: str) -> Deployment:
    deployment = deploy(app, broker, "postgresql")
    deployment.paths = [str(APPS)]
    deployment.script(worker.APPS / "creating.py", app)
    return deployment


def _flushed(deployment: Deployment, how: str) -> float:
    """Return the items per second of a worker, from when it is ready to its last batch."""
    deployment.script(APPS / "filling.py", how, str(ITEMS))
    running = deployment.start("prefork", PROCESSES, level="WARNING").wait_ready()
    wait_until(lambda: sum(count for _, count in _batches(deployment)) >= ITEMS, deployment.describe, deadline_s=120)
    last, _ = _batches(deployment)[-1]
    assert running.stop() == 0
    Path(deployment.folder / "batches.notes").unlink()
    return ITEMS / (last - running.ready_at)


def _batches(deployment: Deployment) -> list[tuple[float, int]]:
    """Return when each batch was flushed, and how many items it had."""
    noted = [line.split() for line in deployment.noted("batches")]
    return sorted((float(at), int(count)) for at, count in noted)
