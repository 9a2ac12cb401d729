"""Celery without this library: a task with the options of a step, which writes a row in a transaction of its own."""

import timed as timed
from deployed import make_app
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from written import Base as Base
from written import Written

app = make_app()
engine = create_engine(app.conf.saga_backend)


@app.task(name="plain.write", acks_late=True, reject_on_worker_lost=True, acks_on_timeout=False, ignore_result=True)
def write(name: str, amount: int) -> None:
    with Session(engine) as session, session.begin():
        session.add(Written(number=amount))
