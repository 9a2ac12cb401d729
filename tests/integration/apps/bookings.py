"""The book of three travel services, a SQLite file: what was booked and what was cancelled, in this order, whoever is killed.

Work is known by the id under which it was sent first: it is booked once and cancelled once, however often it is delivered.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

BOOKED, CANCELLED, CLOSED = "booked", "cancelled", "closed"
_TABLES = """
CREATE TABLE IF NOT EXISTS event (number INTEGER PRIMARY KEY, what TEXT NOT NULL, reference TEXT NOT NULL, work TEXT NOT NULL,
    UNIQUE (work, what));
CREATE TABLE IF NOT EXISTS attempt (number INTEGER PRIMARY KEY, work TEXT NOT NULL, id TEXT NOT NULL UNIQUE);
"""


class Event(NamedTuple):
    """Something that has happened to a booking."""

    number: int  #: of all of them
    what: str
    reference: str  #: its service and its trip
    work: str


def reference_of(service: str, trip_id: str) -> str:
    """Return what a service calls the booking of a trip."""
    return f"{service} of {trip_id}"


class Bookings:
    """The book, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "bookings.sqlite3"

    def create(self) -> None:
        """Create the file, before anybody is killed."""
        with self._writing() as book:
            book.executescript(_TABLES)

    def book(self, reference: str, work: str) -> None:
        """Book, unless the work was closed."""
        with self._writing() as book:
            if CLOSED not in _of(book, work):
                _add(book, BOOKED, reference, work)

    def cancel(self, reference: str, work: str, *, closes: bool) -> None:
        """Cancel what was booked, if anything was; close it, so that nothing is booked any more."""
        with self._writing() as book:
            if BOOKED in _of(book, work):
                _add(book, CANCELLED, reference, work)
            if closes:
                _add(book, CLOSED, reference, work)

    def attempt(self, work: str, id: str) -> int:
        """Count an attempt to cancel; return its number, which is that of an earlier delivery of it."""
        with self._writing() as book:
            book.execute("INSERT OR IGNORE INTO attempt (work, id) VALUES (?, ?)", (work, id))
            count = """SELECT count(*) FROM attempt WHERE work = ? AND number <= (SELECT number FROM attempt WHERE id = ?)"""
            return int(book.execute(count, (work, id)).fetchone()[0])

    def events(self) -> list[Event]:
        """Return what has happened."""
        with self._writing() as book:
            return [Event(*row) for row in book.execute("SELECT number, what, reference, work FROM event ORDER BY number")]

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._file, timeout=60, isolation_level=None)) as book:
            book.execute("PRAGMA synchronous = OFF")  # processes are killed here, and no machine
            book.execute("BEGIN IMMEDIATE")
            yield book
            if book.in_transaction:
                book.execute("COMMIT")


def _of(book: sqlite3.Connection, work: str) -> set[str]:
    return {what for (what,) in book.execute("SELECT what FROM event WHERE work = ?", (work,))}


def _add(book: sqlite3.Connection, what: str, reference: str, work: str) -> None:
    book.execute("INSERT OR IGNORE INTO event (what, reference, work) VALUES (?, ?, ?)", (what, reference, work))
