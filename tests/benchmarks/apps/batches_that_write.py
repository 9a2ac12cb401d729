"""Batches of numbers whose rows are written with the removal of the items, or before it by a session of the function's own."""

import time

from deployed import make_app, note
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from written import Base as Base
from written import Written

from celery_sagas import Batch, aggregator

app = make_app()
engine = create_engine(app.conf.saga_backend)
#: Items in one batch.
SIZE = 100


@aggregator(name="batches.with_removal", size=SIZE, within=1, transaction=Session)
def with_removal(batch: Batch[int], session: Session) -> None:
    write(session, batch)
    note("batches", f"{time.time()} {len(batch)}")


@aggregator(name="batches.before_removal", size=SIZE, within=1)
def before_removal(batch: Batch[int]) -> None:
    with Session(engine) as session, session.begin():
        write(session, batch)
    note("batches", f"{time.time()} {len(batch)}")


def write(session: Session, batch: Batch[int]) -> None:
    session.add_all(Written(number=number) for number in batch)
