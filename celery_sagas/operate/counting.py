"""Counts of instances, messages and dead letters. Each stops where operators need no more: it costs what it counts."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from celery_sagas.core.pending import PAUSED
from celery_sagas.core.saga import SagaDefinition
from celery_sagas.engine.listing import count_live
from celery_sagas.operate.choosing import LateRows
from celery_sagas.operate.explain import LATE_MS
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.switches import Switch

#: Where counts stop.
COUNTED: Final = 10_000


def count_text(number: int) -> str:
    """Return a number that was counted up to ``COUNTED + 1``."""
    return f"> {COUNTED:,}" if number > COUNTED else f"{number:,}"


def of_sagas(backend: Backend, sagas: Sequence[SagaDefinition]) -> Iterator[dict[str, Any]]:
    """Yield for each saga how many instances it has, how many are paused, and how long ago the oldest change of one was."""
    now = backend.outbox.time()
    for saga in sagas:
        count, listed = count_live(backend, saga, COUNTED + 1), saga.names if backend.has_instances else ()
        oldest = [page.instances[0].updated_at for name in listed if (page := _oldest(backend, name)).instances]
        paused = sum(backend.instances.count(name, COUNTED + 1, PAUSED) for name in listed)
        yield {
            "saga": saga.name,
            "instances": count,
            "paused": paused,
            "oldest_change_ms": now - min(oldest) if oldest else None,
        }


def _oldest(backend: Backend, name: str) -> Any:
    return backend.instances.page(name, 1, oldest_first=True)


def of_backend(backend: Backend, looked_at: int | None = None) -> dict[str, Any]:
    """Return how many messages are in an outbox, how many dead letters are kept, and which tasks no relay has taken.

    Args:
        backend: It is read.
        looked_at: How many messages are looked at that no relay has taken; ``None``: as many as ``LateRows`` does.
    """
    tally, now = backend.outbox.tally(COUNTED + 1), backend.outbox.time()
    oldest = now - tally.oldest_due_at if tally.oldest_due_at else None
    rows = LateRows(backend, now - LATE_MS, looked_at)
    untaken = sorted({row.task for row in rows.untried()})
    return {
        "backend": backend.url,
        "due": tally.due,
        "oldest_due_ms": oldest,
        "tried": tally.tried,
        "dead_letters": backend.dead.count(),
        "untaken": untaken,
        "may_be_more_untaken": bool(rows.cut),
    }


def of_switch(switch: Switch) -> dict[str, Any]:
    """Return what is held, by whom and why."""
    return {"held": switch.name, "actor": switch.actor, "reason": switch.reason, "at": switch.at}
