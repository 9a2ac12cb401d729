"""The aggregator of ``batches``, whose process is killed once before and once after each command of its store.

The name of a group says where. A command that comes from no message, but from a relay or a program, is given by the task
``batches.do``, and what names no group kills the process where that task says.
"""

import contextlib
import time
from collections.abc import Callable
from typing import Any

from batches import app as app
from batches import collect
from celery import signals
from deployed import FOLDER, note
from traps import die, set_trap

from celery_sagas.engine.sweeps import Sweep
from celery_sagas.errors import NotBuffered
from celery_sagas.worker.process.relay import groups_of
from celery_sagas.worker.runtime import runtime_of

#: Where the task ``do`` is to be killed that runs in this process.
_doing: list[str] = []


def deadly(port: Any, method: str, stage: str, groups_of: Callable[..., list[str]]) -> None:
    """Let a method of the store kill the process before and after its work, for the groups that are named so."""
    set_trap(port, method, stage, groups_of, die_if_named)


def die_if_named(groups: list[str], point: str) -> None:
    if point in groups:
        die(point)


def added_to(rules: Any, additions: Any) -> list[str]:
    return [addition.group for addition in additions]


def named(rules: Any, group: str, *rest: Any) -> list[str]:
    return [group]


def done_to(*arguments: Any) -> list[str]:
    return _doing


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    batches = runtime_of(app).batches
    deadly(batches.aggregates, "insert", "insert", added_to)
    for method in ("claim", "renew", "remove", "release"):
        deadly(batches.aggregates, method, method, named)
    deadly(batches.buffers, "remove", "remove_one", named)
    for method in ("fire", "clear"):
        deadly(batches.buffers, method, method, named)
    for method in ("claim_due", "purge", "resolve", "restore"):
        deadly(batches.aggregates, method, method, done_to)


@app.task(name="batches.do", ignore_result=True)
def do(command: str, group: str) -> None:
    """Give a command as a relay or a program does; it may kill this process at the point that the group is named for."""
    _doing[:] = [group]
    _COMMANDS[command](group)
    _doing.clear()
    note("done", group)


def sweep(group: str) -> None:
    if (FOLDER / f"{group}.once").exists():  # the pool gives what a process had not confirmed to another, when it has died
        return
    groups = groups_of(runtime_of(app))
    assert groups is not None
    groups.sweep(Sweep(time.time()), lambda: False)


def remove_one(group: str) -> None:
    with contextlib.suppress(NotBuffered):
        collect.remove(f"item of {group}", group)


def restore(group: str) -> None:
    runtime = runtime_of(app)
    for dead_letter in runtime.batches.dead.list(100):
        if dead_letter.key == group:
            runtime.batches.aggregates.restore(runtime.rules_named(collect.name), dead_letter)


_COMMANDS: dict[str, Callable[[str], object]] = {
    "fire": collect.flush,
    "clear": collect.clear,
    "remove_one": remove_one,
    "restore": restore,
    "purge": lambda group: runtime_of(app).batches.aggregates.purge(1_000),
    **dict.fromkeys(("claim_due", "resolve"), sweep),
}
