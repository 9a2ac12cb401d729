"""The bank: it belongs to the outside world, knows nothing of the shop, and keeps its books in a file of its own.

Like every payment service worth its name it takes an *idempotency key*: one key is charged once, however often it is asked.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from decimal import Decimal

_BOOKS = """CREATE TABLE IF NOT EXISTS charge (
    key TEXT PRIMARY KEY, amount TEXT NOT NULL, calls INTEGER NOT NULL DEFAULT 0, charged INTEGER NOT NULL DEFAULT 0,
    refunded INTEGER NOT NULL DEFAULT 0, closed INTEGER NOT NULL DEFAULT 0)"""


class Declined(Exception):
    """Raised when a card is not charged: asking again would not help."""


class Pending(Exception):
    """Raised when the customer must confirm the payment first: ask again in a while."""


class Unreachable(Exception):
    """Raised when the bank gave no answer: it may have charged the card, or not."""


def charge(card: str, amount: Decimal, key: str) -> str:
    """Charge a card, once for each key; return the receipt."""
    calls = _note_call(key, amount)
    if card == "declined":
        raise Declined(f"{key}: the card was declined")
    if card == "slow" and calls == 1:
        raise Pending(f"{key}: waiting for the customer")
    if card == "flaky" and calls == 1:
        raise Unreachable(f"{key}: no connection")
    with _books() as books:
        if not books.execute("UPDATE charge SET charged = 1 WHERE key = ? AND NOT closed", (key,)).rowcount:
            raise Declined(f"{key}: the money was given back already")
    if card == "flaky" and calls == 2:
        raise Unreachable(f"{key}: the connection broke before the answer came")
    return f"receipt-{key}"


def give_back(key: str) -> None:
    """Give back what was charged under a key, if anything was, and charge nothing under it any more."""
    close = """INSERT INTO charge (key, amount, closed) VALUES (?, '0', 1)
        ON CONFLICT (key) DO UPDATE SET closed = 1, refunded = charged"""
    with _books() as books:
        books.execute(close, (key,))


def balance() -> Decimal:
    """Return what was charged and not refunded."""
    with _books() as books:
        rows = books.execute("SELECT amount FROM charge WHERE charged > refunded").fetchall()
    return sum((Decimal(amount) for (amount,) in rows), Decimal(0))


def count(what: str) -> int:
    """Count the ``calls``, the cards that were ``charged``, or those ``refunded``."""
    with _books() as books:
        return int(books.execute(f"SELECT COALESCE(SUM({what}), 0) FROM charge").fetchone()[0])  # noqa: S608


def _note_call(key: str, amount: Decimal) -> int:
    note = """INSERT INTO charge (key, amount, calls) VALUES (?, ?, 1)
        ON CONFLICT (key) DO UPDATE SET calls = calls + 1 RETURNING calls"""
    with _books() as books:
        return int(books.execute(note, (key, str(amount))).fetchone()[0])


@contextmanager
def _books() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(os.environ["SHOP_BANK"], timeout=30)) as books, books:
        books.execute("PRAGMA synchronous = OFF")
        books.execute(_BOOKS)
        yield books
