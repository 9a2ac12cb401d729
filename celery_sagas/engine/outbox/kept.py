"""Kept rows: those whose messages were published, and that stay until the messages are handled."""

from enum import Enum

from celery_sagas.core.pending import Pending
from celery_sagas.core.registry import registry
from celery_sagas.engine.dead_letters.dead_lettering import dead_letter_id_of
from celery_sagas.engine.instance import pending_of
from celery_sagas.errors import NewerState, Retry, StoreError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, Handling, Lookup, OutboxRow


def is_kept(row: OutboxRow) -> bool:
    """Return whether a claimed row was published before."""
    return row.tried_at > 0 and not row.attempts


class Next(Enum):
    """What becomes of a kept row that is due again."""

    PUBLISHED = "published"
    KEPT = "kept"  #: the message has come, and waits with the instance: it may be lost once more when it is released
    REMOVED = "removed"


def next_of(backend: Backend, row: OutboxRow) -> Next:
    """Return what becomes of a kept row.

    It is removed if its message has failed for good: the dead letter takes its place, also once that is retried or discarded. So
    it is if its instance no longer waits for it: code of an earlier release has handled the message, and left the row.

    Raises:
        StoreError: The store is away.
    """
    to, step = registry.step_named(row.task), registry.step_named(row.step)
    if backend.dead.get(dead_letter_id_of(to.name if to else row.task, row.message_id)):
        return Next.REMOVED
    if step is None or not row.instance_id:
        return Next.PUBLISHED
    handling = Handling(to.names if to else (row.task,), row.message_id)
    try:
        found = backend.sagas.find(Lookup(step.saga.names, ID, row.instance_id), handling)
        pending = pending_of(found.record) if found.record else Pending()
    except StoreError as exc:
        if exc.retry is not Retry.NEVER and not isinstance(exc, NewerState):
            raise
        return Next.PUBLISHED
    if found.handled is not None or row.id not in pending.rows:
        return Next.REMOVED
    return Next.KEPT if pending.is_deferred(handling.steps, row.message_id) else Next.PUBLISHED
