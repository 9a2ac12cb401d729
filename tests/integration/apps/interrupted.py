"""Counters whose steps are interrupted, as a soft time limit does it: by an exception out of a signal handler, anywhere.

A time limit of Celery's own is counted in the worker's main process, far too coarsely for a step of some milliseconds.
"""

import gc
import random
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any
from weakref import ref

from celery import signals
from celery.exceptions import SoftTimeLimitExceeded
from counters import add_and_tell
from counters import app as app
from deployed import note

from celery_sagas.stores.redis.backend import RedisBackend
from celery_sagas.stores.redis.connection.connections import Server
from celery_sagas.stores.sql.connection.connections import Connections, SqlConnection
from celery_sagas.worker import tasks
from celery_sagas.worker.batches import steps
from celery_sagas.worker.runtime import runtime_of

#: When a step is interrupted at the earliest and at the latest: by magnitudes, since machines differ. Seconds.
FIRST_S, LAST_S = 0.0001, 0.05
#: How often one message is interrupted at most.
MOST_RETRIES = 3

_handle = tasks.handle_message
_handle_together = steps.handle_together


def handle(task: Any, args: Any, kwargs: Any) -> Any:
    """Handle a message, interrupted at a random moment of it; a message that was interrupted often is left alone."""
    note_pool()
    if task.name != add_and_tell.name or (task.request.retries or 0) >= MOST_RETRIES:
        return _handle(task, args, kwargs)
    try:
        return within_time(_handle, task, args, kwargs)
    except SoftTimeLimitExceeded as exc:
        note("interrupted", task.request.id)
        raise task.retry(exc=exc, countdown=0, max_retries=None) from exc


def handle_together(described: Sequence[Any], queues: Collection[str] = ()) -> Any:
    """Handle messages together, interrupted at a random moment: those that are not handled run alone."""
    note_pool()
    settled = within_time(_handle_together, described, queues)
    for _ in settled.left:
        note("interrupted", "in a batch")
    return settled


def within_time(work: Callable[..., Any], *args: Any) -> Any:
    """Do work that is interrupted if it takes too long."""
    signal.setitimer(signal.ITIMER_REAL, FIRST_S * (LAST_S / FIRST_S) ** random.random())
    try:
        return work(*args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def note_pool() -> None:
    """Note connections that earlier runs have not checked in; other threads check theirs in a moment later.

    The error of the last interrupted run may hold the one that it was given, with its frames, until another error takes its
    place. More than one would be a leak, and grow.
    """
    deadline = time.monotonic() + 10
    while (used := _used(runtime_of(app).backend)) > 1 and time.monotonic() < deadline:
        gc.collect()  # the errors of interrupted runs stand in cycles with their frames
        time.sleep(0.001)
    if used > 1:
        note("unsound", f"{used} connections are in use")


def _used(backend: Any) -> int:
    """Count the connections that are open, and not idle."""
    connections = backend.client._server.connections if isinstance(backend, RedisBackend) else backend.database.connections
    opened = [connection for reference in list(_opened) if (connection := reference()) is not None]
    return sum(map(_is_open, opened)) - int(connections.idle)


def _is_open(connection: Any) -> bool:
    return (connection.driver_connection if isinstance(connection, SqlConnection) else connection._sock) is not None


def noting(open_one: Callable[..., Any]) -> Callable[..., Any]:
    """Note the connections that a function opens."""

    def noted(*args: Any) -> Any:
        connection = open_one(*args)
        _opened.append(ref(connection))
        return connection

    return noted


def interrupt(*_: object) -> None:
    """Do what Celery does at a soft time limit."""
    raise SoftTimeLimitExceeded


@signals.worker_process_init.connect
@signals.worker_ready.connect
def arm(**_: object) -> None:
    """Prepare this process."""
    signal.signal(signal.SIGALRM, interrupt)


tasks.handle_message = handle
steps.handle_together = handle_together
#: A list, of which a copy can be made while another thread opens a connection; of a set that raises an error now and then.
_opened: list[ref[Any]] = []
Server._make = noting(Server._make)  # type: ignore[method-assign]
Connections.open = noting(Connections.open)  # type: ignore[method-assign]
