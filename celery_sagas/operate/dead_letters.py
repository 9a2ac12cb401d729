"""Dead letters, as operators act on them: the audit has who retried, discarded or revealed one, and why."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic_core import to_json

from celery_sagas.core.ids import derived_id, time_ordered_id
from celery_sagas.core.requests.requests import UNDONE
from celery_sagas.errors import MisuseError, Retry, StoreError, StoreUnavailable
from celery_sagas.operate.recording import record_act
from celery_sagas.operate.redact import MARK, redacted_item, redacted_message
from celery_sagas.stores.optional import no_audit
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, AuditEntry, DeadLetter, Lookup
from celery_sagas.worker.failures.dead_letters import tries_of
from celery_sagas.worker.operators import discard_dead_letter, instance_named_in, retry_dead_letter, saga_in, signature_for_retry
from celery_sagas.worker.runtime import Runtime


class Treated(NamedTuple):
    """What has come of a dead letter."""

    id: str  #: of the dead letter
    text: str  #: what was done
    sent_as: str = ""  #: the id under which its message was sent, or its item is buffered again; empty: nothing was sent


@dataclass(frozen=True)
class DeadLetters:
    """The dead letters, as an operator acts on them for a reason.

    The entry of the audit is committed before anything is sent or removed: an act that fails then has its entry as well, and is
    repeated. What the same operator repeats for the same reason is one entry, but for ``reveal``.

    All acts raise these errors:

    * ``MisuseError``: There is no such dead letter, or it cannot be retried.
    * ``ConfigurationError``: The backend of its saga keeps no audit: then nothing is done.
    * ``StoreError``, ``PublishError``: It is unknown whether it was done; repeating the call completes it.
    """

    _runtime: Runtime
    actor: str
    reason: str

    def retry(self, id: str) -> Treated:
        """Send the message of a dead letter again, under a new id, or put a rejected item back; remove the dead letter."""
        dead_letter = dead_letter_of(self._runtime, id)
        if not dead_letter.number:
            signature_for_retry(self._runtime.app, dead_letter)
        self._record("retry", dead_letter)
        retried = retry_dead_letter(self._runtime, dead_letter)
        if dead_letter.number:
            return Treated(id, f"{_named(dead_letter)} was put back", retried.id)
        if not retried.id:
            return Treated(id, f"{dead_letter.task} {retried.reason}; the dead letter was removed and nothing was sent")
        return Treated(id, f"{dead_letter.task} was sent again as {retried.id}", retried.id)

    def discard(self, id: str) -> Treated:
        """Remove a dead letter: its message is never handled, its item never flushed, and its instance waits for it no longer."""
        dead_letter = dead_letter_of(self._runtime, id)
        self._record("discard", dead_letter)
        waited = discard_dead_letter(self._runtime, dead_letter)
        if waited and dead_letter.task.endswith(UNDONE):
            what = f"{dead_letter.saga} {dead_letter.key}"
            return Treated(id, f"what could not be undone counts as undone, and {what} goes on")
        no_longer = ", and its instance no longer waits for it" if waited else ""
        return Treated(id, f"{_named(dead_letter)} was discarded{no_longer}")

    def reveal(self, id: str) -> DeadLetter:
        """Return a dead letter, to be shown with what is hidden; each time has an entry of its own in the audit."""
        dead_letter = dead_letter_of(self._runtime, id)
        self._record("reveal", dead_letter, time_ordered_id())
        return dead_letter

    def _record(self, action: str, dead_letter: DeadLetter, id: str = "") -> None:
        """Commit the entry of the audit, unless the same was done to the dead letter before."""
        saga = None if dead_letter.number else saga_in(dead_letter)
        backend = self._runtime.batches if dead_letter.number else self._runtime.backends.of(saga)
        if not backend.has_audit:
            raise no_audit(backend.url, f"what operators do to the dead letter {dead_letter.id}")
        instance = _instance_of(backend, dead_letter)
        about = {
            "dead_letter": dead_letter.id,
            "task": dead_letter.task,
            "message": dead_letter.message_id,
            "error": dead_letter.error,
        }
        id = id or derived_id(dead_letter.id, f"{action} {dead_letter.at} {self.actor}: {self.reason}")
        whose = saga.name if saga else dead_letter.saga, instance.key, instance.id, 0
        act = AuditEntry(id, self.actor, action, self.reason, *whose, to_json(about).decode())
        record_act(backend, act, instance.run_id, self._runtime.settings.conflict_retries)


class _Instance(NamedTuple):
    """The instance that a dead letter's message is for, as far as it is known."""

    key: str
    id: str
    run_id: str  #: for what is committed about it


def dead_letter_of(runtime: Runtime, id: str) -> DeadLetter:
    """Return a dead letter, in whichever backend it is.

    Raises:
        MisuseError: There is none.
        StoreUnavailable: It is in none of the backends that can be reached, and others are away.
    """
    away: list[StoreUnavailable] = []
    for backend in runtime.backends:
        try:
            if dead_letter := backend.dead.get(id):
                return dead_letter
        except StoreUnavailable as exc:
            away.append(exc)
    if away:
        raise away[0]
    raise MisuseError(f"there is no dead letter {id}", "`celery sagas dead list` shows those that there are")


def _instance_of(backend: Backend, dead_letter: DeadLetter) -> _Instance:
    lookup = instance_named_in(dead_letter)
    if lookup is not None:
        try:
            record, _, new_id = backend.sagas.find(lookup)
        except StoreError as exc:
            if exc.retry is not Retry.NEVER:
                raise
        else:
            key, id = (dead_letter.key, lookup.value) if lookup.property == ID else (lookup.value, "")
            return _Instance(record.key, record.id, new_id) if record else _Instance(key, id, new_id)
    nobody = Lookup((dead_letter.saga,), ID, dead_letter.id)
    return _Instance(dead_letter.key, "", backend.sagas.find(nobody).new_id)


def _named(dead_letter: DeadLetter) -> str:
    return f"the item {dead_letter.message_id} of {dead_letter.task}" if dead_letter.number else dead_letter.task


def facts_of(dead_letter: DeadLetter, hidden: Sequence[str] | None) -> dict[str, Any]:
    """Return what a program is told of a dead letter: the payload, as JSON text, without what is hidden."""
    payload = dead_letter.payload
    if hidden is not None:
        try:
            payload = json.dumps(redacted_payload(dead_letter, json.loads(payload), hidden))
        except (ValueError, RecursionError):
            payload = MARK
    return {**dead_letter._asdict(), "payload": payload, "tries": tries_of(dead_letter)}


def redacted_payload(dead_letter: DeadLetter, value: Any, hidden: Sequence[str]) -> Any:
    """Return the message or the item of a dead letter, as JSON values, without what is hidden."""
    return redacted_item(dead_letter.task, value, hidden) if dead_letter.number else redacted_message(value, hidden)
