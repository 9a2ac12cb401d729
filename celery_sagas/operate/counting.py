"""Counts of instances, messages and dead letters. Each stops where operators need no more: it costs what it counts."""

from collections.abc import Iterator, Sequence, Set
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


def of_backend(backend: Backend) -> dict[str, Any]:
    """Return how many messages are in an outbox, how many dead letters are kept, and which tasks no relay has taken."""
    rows = LateRows(backend, backend.outbox.time() - LATE_MS)
    untaken = {row.task for row in rows.untried()}
    return {**of_messages(backend), **of_untaken(untaken, rows.cut)}


def of_messages(backend: Backend) -> dict[str, Any]:
    """Return how many messages are in an outbox, and how many dead letters are kept."""
    tally, now = backend.outbox.tally(COUNTED + 1), backend.outbox.time()
    return {
        "backend": backend.url,
        "due": tally.due,
        "oldest_due_ms": now - tally.oldest_due_at if tally.oldest_due_at else None,
        "tried": tally.tried,
        "dead_letters": backend.dead.count(),
    }


def of_untaken(tasks: Set[str], cut: Set[str]) -> dict[str, Any]:
    """Return which tasks no relay has taken; ``cut``, as ``LateRows`` has it, tells whether there may be more."""
    return {"untaken": sorted(tasks), "may_be_more_untaken": "untried" in cut}


def of_switch(switch: Switch) -> dict[str, Any]:
    """Return what is held, by whom and why."""
    return {"held": switch.name, "actor": switch.actor, "reason": switch.reason, "at": switch.at}
