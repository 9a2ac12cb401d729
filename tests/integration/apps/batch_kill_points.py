"""The aggregator of ``batches``, whose process is killed once at each point of its way: the name of a group says where."""

import functools
import os
import signal
from typing import Any

from batches import app as app
from celery import signals
from deployed import first_time

from celery_sagas.worker.runtime import runtime_of


def deadly(store: Any, method: str) -> None:
    """Let a method of the store kill the process before and after its work, for the groups that are named so."""
    original = getattr(store, method)

    @functools.wraps(original)
    def wrapped(rules: Any, about: Any, *arguments: Any, **options: Any) -> Any:
        groups = [about] if isinstance(about, str) else [addition.group for addition in about]
        _die_if_named(f"before {method}", groups)
        answer = original(rules, about, *arguments, **options)
        _die_if_named(f"after {method}", groups)
        return answer

    setattr(store, method, wrapped)


def _die_if_named(point: str, groups: list[str]) -> None:
    if any(point in group for group in groups) and first_time(point):
        os.kill(os.getpid(), signal.SIGKILL)


@signals.worker_process_init.connect
def arm(**_: object) -> None:
    """Put the traps into this process's runtime."""
    for method in ("insert", "claim", "remove", "release"):
        deadly(runtime_of(app).batches.aggregates, method)
