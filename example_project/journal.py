"""The journal of an order, which the library writes with every commit.

The one module that looks behind the library's public names: they have no door to the journal's history yet.
"""

from celery_sagas.stores.records import Entry
from celery_sagas.worker.runtime import runtime_of
from example_project.app import app

__all__ = ["Entry", "forget", "history"]

_BATCH = 1000


def history(order_id: str) -> list[Entry]:
    """Return what happened to an order, oldest first."""
    return runtime_of(app).backend.journal.history(["order"], order_id, limit=100)


def forget() -> None:
    """Remove this run's entries, so that nothing of it stays in a database that is not its own."""
    while runtime_of(app).backend.journal.purge(0, _BATCH) == _BATCH:
        pass
