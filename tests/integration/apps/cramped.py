"""Counters in a SQLite file that may have so many pages as the test says: it ends like a disk."""

from contextlib import closing
from typing import Any

from counters import app as app
from deployed import FOLDER
from sqlalchemy import Engine, event


@event.listens_for(Engine, "connect")
def limit(connection: Any, _: object) -> None:
    """Limit what the connection may write, as long as the test has named a number of pages."""
    pages = FOLDER / "pages"
    if pages.exists():
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"PRAGMA max_page_count = {int(pages.read_text())}")
