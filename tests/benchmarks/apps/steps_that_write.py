"""A step that writes a row with its commit."""

import timed as timed
from deployed import make_app
from sqlalchemy.orm import Session
from written import Base as Base
from written import Written

from celery_sagas import Saga

app = make_app()


class Counter(Saga, correlate_by="name"):
    name: str
    value: int = 0


@Counter.starts(transaction=Session)
def write(counter: Counter, session: Session, name: str, amount: int) -> None:
    counter.value += amount
    session.add(Written(number=amount))
