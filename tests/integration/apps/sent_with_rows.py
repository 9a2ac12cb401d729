"""Rows, and messages that are sent with them: by producers, and by a plain task. Both may be killed anywhere on the way."""

from contextlib import suppress
from typing import Any

from celery import signals
from deployed import make_app
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from traps import die_if_told, set_trap

from celery_sagas import Saga, send
from celery_sagas.worker.publishing.amqp import AmqpPublisher
from celery_sagas.worker.runtime import runtime_of

app = make_app()
#: One of the user's own. On SQLite everybody waits for other writers as long as a busy machine needs.
engine = create_engine(app.conf.saga_backend, connect_args={"timeout": 60} if app.conf.saga_backend.startswith("sqlite") else {})
SAGAS = 20


class Base(DeclarativeBase): ...


class Sent(Base):
    """What a producer has written."""

    __tablename__ = f"{app.conf.saga_prefix}_sent"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Told(Base):
    """What the plain task has written that was sent with it."""

    __tablename__ = f"{app.conf.saga_prefix}_told"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Tally(Saga, correlate_by="name"):
    name: str
    numbers: list[int] = []


class Echo(Saga, correlate_by="name"):
    name: str
    numbers: list[int] = []


@Tally.starts
def count(tally: Tally, name: str, number: int) -> None:
    tally.numbers.append(number)


@Echo.starts
def hear(echo: Echo, name: str, number: int) -> None:
    echo.numbers.append(number)


@app.task(name="rows.tell", acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def tell(number: int) -> None:
    """Write a row and send, both once, however often the message is delivered."""
    with suppress(IntegrityError), Session(engine) as session, session.begin():
        write(session, Told(number=number), "teller")
        send(hear.si(f"echo {number % SAGAS}", number), using=session)
        die_if_told("teller after send")


def write(session: Session, row: Sent | Told, who: str) -> None:
    """Write a row."""
    session.add(row)
    session.flush()
    die_if_told(f"{who} after insert")


def arm(who: str) -> None:
    """Put traps into what this process publishes with, once it has committed."""
    runtime = runtime_of(app)
    publisher: Any = runtime.publisher
    publishing = ["_post"] if isinstance(publisher, AmqpPublisher) else ["publish", "publish_many"]
    stages = [(runtime.outbox.outbox, "claim_due", "claim"), (runtime.outbox.outbox, "confirm", "confirm")]
    for port, method, stage in [*stages, *((publisher, method, "publish") for method in publishing)]:
        set_trap(port, method, stage, lambda *_: who, lambda who, point: die_if_told(f"{who} {point}"))


signals.worker_process_init.connect(lambda **_: arm("teller"), weak=False)
