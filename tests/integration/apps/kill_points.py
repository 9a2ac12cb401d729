"""Counters whose process is killed, once at each point of its way through a message.

The name of a counter says where: ``before find``, ``after commit``, … Imported in place of ``counters``.
"""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from celery import signals
from counters import app as app
from deployed import first_time

from celery_sagas.worker.runtime import runtime_of


def die(point: str) -> None:
    """End this process as the kernel would, the first time that anybody comes here."""
    if first_time(point):
        os.kill(os.getpid(), signal.SIGKILL)


def deadly(port: Any, method: str, stage: str, counter_of: Callable[..., str]) -> None:
    """Let a port's method kill the process before and after its work, for the counters that are named so."""
    original = getattr(port, method)

    @functools.wraps(original)
    def wrapped(*arguments: Any) -> Any:
        counter = counter_of(*arguments)
        if counter == f"before {stage}":
            die(counter)
        answer = original(*arguments)
        if counter == f"after {stage}":
            die(counter)
        return answer

    setattr(port, method, wrapped)


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    runtime = runtime_of(app)
    sagas, outbox = runtime.backend.sagas, runtime.backend.outbox
    rows: dict[str, str] = {}

    def counter_of_found(lookup: Any, handling: Any = None) -> str:
        return str(lookup.value) if handling is not None and "counter." in handling.steps[0] else ""

    def counter_of_effects(*arguments: Any) -> str:
        effects = arguments[-1]
        name = effects.entry.key if effects.entry.saga == "counter" else ""
        rows.update((row.id, name) for row in effects.outgoing)
        return name

    deadly(sagas, "find", "find", counter_of_found)
    for commit in ("insert", "update", "delete"):
        deadly(sagas, commit, "commit", counter_of_effects)
    dispatcher = runtime.services.dispatcher
    port, method = (dispatcher.postbox, "post") if dispatcher.postbox else (dispatcher.publisher, "publish")
    deadly(port, method, "publish", lambda row: rows.get(row.id, ""))
    deadly(outbox, "confirm", "confirm", lambda token, ids: next((rows[id] for id in ids if "confirm" in rows.get(id, "")), ""))
