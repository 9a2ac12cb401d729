"""Questions whose process is killed, once at each point of its way through a message.

The name of a question says where: ``before find``, ``after commit``, … of whatever step comes there first, or ``ask_twice after
commit`` of that step. Imported in place of ``asking``.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from asking import app as app
from celery import signals
from deployed import FOLDER, note
from traps import die, set_trap, set_traps_of_many

from celery_sagas.stores.records import KEY
from celery_sagas.worker.publishing.amqp import AmqpPublisher
from celery_sagas.worker.runtime import runtime_of

#: A step, and the key of the instance on which it runs.
Place: TypeAlias = tuple[str, str]
#: Begins the key of an instance whose trap does not kill at once.
HELD = "held "


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    runtime = runtime_of(app)
    sagas, outbox = runtime.backend.sagas, runtime.backend.outbox
    find, rows = sagas.find, dict[str, Place]()

    def places_found(lookup: Any, handling: Any = None) -> list[Place]:
        if handling is None or not handling.steps[0].startswith("quest."):
            return []
        record = None if lookup.property == KEY else find(lookup).record
        return [(handling.steps[0], record.key if record else lookup.value)]

    def places_written(*arguments: Any) -> list[Place]:
        effects = arguments[-1]
        places = [(effects.entry.step, effects.entry.key)] if effects.entry.saga == "quest" else []
        rows.update((row.id, place) for place in places for row in effects.outgoing)
        return places

    def places_of(ids: Iterable[str]) -> list[Place]:
        return [rows[id] for id in ids if id in rows]

    _deadly(sagas, "find", "find", places_found)
    for commit in ("insert", "update", "delete"):
        _deadly(sagas, commit, "commit", places_written)
    dispatcher = runtime.services.dispatcher
    if isinstance(dispatcher.publisher, AmqpPublisher):
        _deadly(dispatcher.publisher, "_post", "publish", lambda row, _: places_of([row.id]))
    else:
        _deadly(dispatcher.publisher, "publish", "publish", lambda row: places_of([row.id]))
        _deadly(dispatcher.publisher, "publish_many", "publish", lambda rows: places_of(row.id for row in rows))
    _deadly(outbox, "confirm", "confirm", lambda token, ids, keep_ms=0: places_of(ids))
    set_traps_of_many(runtime.backend)


def _deadly(port: Any, method: str, stage: str, places_of: Callable[..., list[Place]]) -> None:
    """Let a port's method kill the process before and after its work, at the places that are named so."""
    set_trap(port, method, stage, places_of, _die_at)


def _die_at(places: list[Place], point: str) -> None:
    for step, key in places:
        if f" {step.partition('.')[2]} {point}".endswith(f" {key.removeprefix(HELD)}"):
            die(key, _wait if key.startswith(HELD) else None)


def _wait() -> None:
    note("held", str(os.getpid()))
    while not (FOLDER / "go on").exists():
        time.sleep(0.02)
