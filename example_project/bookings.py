"""The books of an airline, a hotel and a car rental: they belong to the outside world, and are a file of their own.

What is cancelled is not booked any more: a booking that comes after its cancellation is refused.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

_BOOKS = """CREATE TABLE IF NOT EXISTS line (
    id INTEGER PRIMARY KEY, service TEXT NOT NULL, trip TEXT NOT NULL, what TEXT NOT NULL, UNIQUE (service, trip, what))"""


class Line(NamedTuple):
    """What a service has done."""

    service: str
    trip: str
    what: str  #: ``booked`` or ``cancelled``


class Refused(Exception):
    """Raised when nothing is booked: asking again would not help."""


def book(service: str, trip: str) -> str:
    """Book for a trip, once, however often it is asked; return the booking's number."""
    with _books() as books:
        if books.execute("SELECT 1 FROM line WHERE (service, trip, what) = (?, ?, 'cancelled')", (service, trip)).fetchone():
            raise Refused(f"the {service} of trip {trip} was cancelled")
        books.execute("INSERT INTO line (service, trip, what) VALUES (?, ?, 'booked') ON CONFLICT DO NOTHING", (service, trip))
    return f"{service}-{trip}"


def cancel(service: str, trip: str) -> None:
    """Cancel what was booked for a trip, if anything was, and book nothing any more."""
    with _books() as books:
        books.execute("INSERT INTO line (service, trip, what) VALUES (?, ?, 'cancelled') ON CONFLICT DO NOTHING", (service, trip))


def lines() -> list[Line]:
    """Return what was booked and cancelled, oldest first."""
    with _books() as books:
        return [Line(*line) for line in books.execute("SELECT service, trip, what FROM line ORDER BY id")]


@contextmanager
def _books() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ["SHOP_BOOKINGS"], timeout=30)) as books, books:
        books.execute("PRAGMA synchronous = OFF")
        books.execute(_BOOKS)
        books.execute("BEGIN IMMEDIATE")
        yield books
