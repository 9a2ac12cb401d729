"""The ledger: it belongs to the accountants, knows nothing of the shop's orders, and is a file of its own.

A number is filed once, however often it is handed in.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from decimal import Decimal
from typing import NamedTuple

_PAGES = """
CREATE TABLE IF NOT EXISTS batch (id INTEGER PRIMARY KEY, book TEXT NOT NULL, size INTEGER NOT NULL, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS invoice (number TEXT PRIMARY KEY, total TEXT NOT NULL, batch INTEGER NOT NULL REFERENCES batch);
"""


class Filed(NamedTuple):
    """An invoice, as the ledger has it."""

    number: str
    book: str
    total: Decimal


class Line(NamedTuple):
    """A batch in which invoices came."""

    book: str
    size: int  #: all that were in it
    reason: str  #: for which it came when it did


def file(line: Line, totals: Mapping[str, Decimal]) -> None:
    """File the invoices of a batch, by their numbers: all of them, or none. Of a batch that is all known nothing is noted."""
    with _ledger() as ledger:
        batch = ledger.execute("INSERT INTO batch (book, size, reason) VALUES (?, ?, ?)", line).lastrowid
        invoices = [(number, str(total), batch) for number, total in totals.items()]
        filing = "INSERT INTO invoice (number, total, batch) VALUES (?, ?, ?) ON CONFLICT (number) DO NOTHING"
        if ledger.executemany(filing, invoices).rowcount < 1:
            ledger.rollback()


def invoices() -> list[Filed]:
    """Return what is filed."""
    with _ledger() as ledger:
        rows = ledger.execute("SELECT number, book, total FROM invoice JOIN batch ON batch.id = invoice.batch").fetchall()
    return [Filed(number, book, Decimal(total)) for number, book, total in rows]


def batches() -> list[Line]:
    """Return the batches in which it came."""
    with _ledger() as ledger:
        return [Line(*row) for row in ledger.execute("SELECT book, size, reason FROM batch ORDER BY id")]


@contextmanager
def _ledger() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ["SHOP_LEDGER"], timeout=30)) as ledger, ledger:
        ledger.execute("PRAGMA synchronous = OFF")
        ledger.executescript(_PAGES)
        yield ledger
