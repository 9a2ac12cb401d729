"""The audit of acts that change no instance: the entry is committed before anything is done."""

from contextlib import suppress

from pydantic_core import from_json, to_json

from celery_sagas.engine.acts.acting import OPERATOR
from celery_sagas.engine.conflicts import Conflicts
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import AlreadyHandled, RevisionConflict
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import AuditEntry, Effects, Entry


def record_act(backend: Backend, act: AuditEntry, run_id: str, conflict_retries: int) -> None:
    """Commit an entry of the audit, and that of the journal, unless they are there already.

    Args:
        backend: It keeps an audit.
        act: The entry; its detail is a JSON object.
        run_id: A new id, as ``SagaStore.find`` has returned it.
        conflict_retries: How often it is tried again at once.

    Raises:
        StoreError: It is unknown whether it was committed; nothing may be done.
    """
    known = {"act": act.action, "actor": act.actor, "because": act.reason, **from_json(act.detail)}
    step, whose = ".".join(filter(None, (act.saga, OPERATOR))), (act.saga, act.key, act.instance_id, act.version)
    entry = Entry(step, act.id, run_id, Kind.OPERATED.value, *whose, to_json(known).decode())
    with suppress(AlreadyHandled):
        _commit(backend, Effects(entry, audit=act), Conflicts(conflict_retries))


def _commit(backend: Backend, effects: Effects, conflicts: Conflicts) -> None:
    """Commit an entry that the audit may have already, where the journal has forgotten it."""
    while True:
        try:
            backend.sagas.record(effects)
        except RevisionConflict as conflict:
            if conflict.reason == "unique":
                return
            conflicts.wait(conflict)
        else:
            return
