"""Instances on a page, as operators see them: what there is to know without their states."""

from collections.abc import Sequence
from typing import Any

from celery_sagas.core.pending import NewerFormat, Pending, read_pending
from celery_sagas.core.requests.requests import Request
from celery_sagas.stores.instances import Glance


def facts_of(glance: Glance) -> dict[str, Any]:
    """Return what a program is told of an instance on a page."""
    pending = _pending(glance)
    awaited = (
        None
        if isinstance(pending, str)
        else {
            "timeouts": {name: timeout.at for name, timeout in pending.timeouts.items()},
            "requests": {request.id: {"task": request.task, "until": request.at or None} for request in _open(pending)},
            "deferred": len(pending.deferred),
            "paused": pending.paused is not None,
        }
    )
    return {**{name: value for name, value in glance._asdict().items() if name != "pending"}, "waits_for": awaited}


def waits_for(glance: Glance) -> str:
    """Return in a few words for what an instance on a page waits."""
    pending = _pending(glance)
    if isinstance(pending, str):
        return pending
    timeouts, tasks = list(pending.timeouts), [request.task for request in _open(pending)]
    parts = [
        f"timeout {timeouts[0]}" if len(timeouts) == 1 else f"{len(timeouts)} timeouts" if timeouts else "",
        f"answer of {tasks[0]}" if len(tasks) == 1 else f"{len(tasks)} answers" if tasks else "",
        f"{len(pending.deferred)} deferred" if pending.deferred else "",
    ]
    if pending.paused:
        parts.insert(0, "its resumption")
    return ", ".join(filter(None, parts)) or "nothing"


def _pending(glance: Glance) -> Pending | str:
    """Return the pending map of an instance, or why it cannot be shown."""
    if not glance.version:
        return "unreadable"
    if glance.pending is None:
        return "too much to show"
    try:
        return read_pending(glance.pending, glance.updated_at)
    except NewerFormat:
        return "written by newer code"
    except ValueError:
        return "unreadable"


def _open(pending: Pending) -> Sequence[Request]:
    return [request for request in pending.requests.values() if not request.has_timed_out]
