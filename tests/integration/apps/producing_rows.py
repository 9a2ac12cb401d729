"""A producer of numbered rows, as a process: each row sends two messages with its commit.

Each line of its input is a part of its work: ``<first> <end>``. It passes over what another one has written.
"""

import sys
from contextlib import suppress

from deployed import note
from sent_with_rows import SAGAS, Sent, arm, count, engine, tell, write
from sqlalchemy.orm import Session
from traps import die_if_told

from celery_sagas import send

#: One transaction in so many is rolled back, and one to a savepoint.
UNDONE_EVERY, UNDONE_IN_PART = 20, 10


class Undone(Exception):
    """Rolls a transaction back."""


def produce(number: int) -> None:
    """Write a row and send its messages, if it is not there yet."""
    with Session(engine) as session, session.begin():
        if session.get(Sent, number) is not None:
            return
        write_and_send(session, number)
        if number % UNDONE_EVERY == UNDONE_IN_PART:
            with session.begin_nested() as savepoint:
                write_and_send(session, -number)
                savepoint.rollback()
        die_if_told("producer after send")
        if number % UNDONE_EVERY == 0:
            raise Undone


def write_and_send(session: Session, number: int) -> None:
    write(session, Sent(number=number), "producer")
    send(count.si(f"tally {number % SAGAS}", number), using=session)
    send(tell.si(number), using=session)


if __name__ == "__main__":
    arm("producer")
    for line in sys.stdin:
        first, end = map(int, line.split())
        for number in range(first, end):
            with suppress(Undone):
                produce(number)
        note("produced", str(first))
