"""The journal of an order or a trip, which the library writes with every commit, and the invoices that were rejected.

The one module that looks behind the library's public names: they have no door to the journal's history yet, and to dead letters
only one on the command line, ``celery --app example_project.app sagas dead``.
"""

import time
from contextlib import closing

from celery_sagas.stores.items import Rules
from celery_sagas.stores.records import DeadLetter, Entry
from celery_sagas.stores.urls import open_backend
from celery_sagas.worker.runtime import runtime_of
from example_project.app import app
from example_project.invoices import file_invoices

__all__ = ["Entry", "forget", "history", "rejected"]

_BATCH = 1000
#: Longer than anything is kept.
_YEAR_MS = 366 * 86_400_000


def history(saga: str, key: str) -> list[Entry]:
    """Return what happened to an order, or a trip, oldest first."""
    return runtime_of(app).backend.journal.history([saga], key, limit=100)


def rejected() -> list[str]:
    """Return the ids of the invoices that were rejected."""
    return [dead_letter.message_id for dead_letter in _dead_letters()]


def _dead_letters() -> list[DeadLetter]:
    return [dead_letter for dead_letter in runtime_of(app).batches.dead.list(_BATCH) if dead_letter.task == file_invoices.name]


def forget() -> None:
    """Remove this run's entries, so that nothing of it stays in a database that is not its own.

    But for the name of the aggregator: a store keeps the names of all that have ever buffered anything.
    """
    backend = runtime_of(app).backend
    for name in backend.buffers.names():  # nothing waits but what carriers have answered too late, which a relay would clear
        for group in backend.buffers.groups(name, _BATCH):
            backend.buffers.clear(Rules(name), group.group)
    for dead_letter in _dead_letters():
        backend.dead.remove(dead_letter.id)
    settings = runtime_of(app).settings
    options = settings.backend_options
    with closing(open_backend(settings.backend, prefix=settings.prefix, options=options, clock=_in_a_year)) as backend:
        while backend.journal.purge(0, _BATCH) == _BATCH:
            pass
        while backend.aggregates.purge(_BATCH) == _BATCH:  # the ids of what was buffered, kept to know it again
            pass


def _in_a_year() -> int:
    return time.time_ns() // 1_000_000 + _YEAR_MS
