"""The effects of a commit in memory besides the instance: the journal entry and the outgoing rows.

The functions expect that their caller holds the lock. Checks come before the first write, and no write can fail.
"""

from celery_sagas.errors import AlreadyHandled, RevisionConflict
from celery_sagas.stores.memory.rows import Row, leased
from celery_sagas.stores.memory.state import MemoryState
from celery_sagas.stores.records import Effects, Entry, OutboxRow, Outgoing


def is_replay(state: MemoryState, entry: Entry) -> bool:
    """Return whether this attempt has committed before.

    Raises:
        AlreadyHandled: Another attempt has committed.
    """
    handled = state.journal.get((entry.step, entry.message_id))
    if handled is not None and handled.attempt != entry.attempt:
        raise AlreadyHandled(entry.step, entry.message_id)
    return handled is not None


def check_rows(state: MemoryState, effects: Effects) -> None:
    """Raise RevisionConflict if an outgoing row is there already, as a primary key would."""
    if any(outgoing.id in state.outbox for outgoing in effects.outgoing):
        raise RevisionConflict(effects.entry.saga, effects.entry.key, "unique")


def write_effects(state: MemoryState, effects: Effects, now: int) -> None:
    """Write the journal entry and the outgoing rows: under their first lease, unless they wait for their due time."""
    entry = effects.entry
    state.journal[entry.step, entry.message_id] = entry._replace(at=now)
    for outgoing in effects.outgoing:
        message = _message(outgoing, entry)
        row = Row(message, outgoing.due_at) if outgoing.due_at else leased(Row(message), effects.owner, now + effects.grace_ms)
        state.outbox.add(row)


def _message(outgoing: Outgoing, entry: Entry) -> OutboxRow:
    return OutboxRow(
        id=outgoing.id,
        kind=outgoing.kind,
        message_id=outgoing.message_id,
        task=outgoing.task,
        payload=outgoing.payload,
        due_at=outgoing.due_at,
        attempts=0,
        instance_id=entry.instance_id,
        step=entry.step,
        cause=entry.message_id,
    )
