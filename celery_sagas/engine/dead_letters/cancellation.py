"""Cancellation: an instance stops waiting for a timeout, or an answer, whose message will never be handled."""

import logging
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json

from celery_sagas.core.ids import derived_id
from celery_sagas.core.pending import Pending
from celery_sagas.core.requests.requests import Addressed, ReplyKind
from celery_sagas.engine.conflicts import Conflicts
from celery_sagas.engine.instance import pending_of
from celery_sagas.engine.outcomes import Kind
from celery_sagas.errors import AlreadyHandled, Retry, RevisionConflict, StoreError, UnreadableState
from celery_sagas.stores.ports import Backend, SagaStore
from celery_sagas.stores.records import ID, Change, DeadLetter, Effects, Entry, Found, Lookup, Record

logger = logging.getLogger("celery_sagas")


@dataclass(frozen=True, slots=True)
class Cancellation:
    """Removes the timeout, or the request, of a dead letter from its instance's pending map, under a journal entry of its own.

    A dead letter of a series is one occurrence: the series goes on. So does a request after an interim answer.
    """

    dead_letter: DeadLetter
    names: tuple[str, ...]  #: of the saga: the stored one first
    addressed: Addressed  #: the instance, and the timeout or request
    outcome: Any = None  #: of the request, as JSON values in kombu's form: what it has done can still be undone

    def perform(self, backend: Backend, conflict_retries: int) -> bool:
        """Remove it, even if the instance changes at the same time. One that must be settled stays.

        Returns:
            Whether it was removed. An instance that is gone, or permanently unreadable, has none.

        Raises:
            RevisionConflict: The instance was changed each time, or is locked.
            StoreError: It is unknown whether it was removed; repeating the call completes it.
        """
        conflicts = Conflicts(conflict_retries)
        while True:
            try:
                return self._try(backend.sagas)
            except RevisionConflict as conflict:
                conflicts.wait(conflict)
            except AlreadyHandled:
                return True

    def is_due(self, sagas: SagaStore) -> bool:
        """Return whether the instance still waits for it, or may do so; once it does not, it never will again."""
        found = self._find(sagas)
        if found is None or found.record is None:
            return found is None
        try:
            pending = pending_of(found.record)
            return pending.has_series(self.addressed.id) or self._take(pending)
        except StoreError:
            return True

    def must_be_settled(self, sagas: SagaStore) -> bool:
        """Return whether an instance waits for it that goes on only with a message: it is an undo, or is itself undone."""
        found = self._find(sagas)
        try:
            return found is not None and found.record is not None and self._is_settled(pending_of(found.record))
        except StoreError:
            return False

    def _is_settled(self, pending: Pending) -> bool:
        request = None if self._is_interim else pending.requests.get(self.addressed.id)
        return request is not None and (request.is_undone or bool(request.undoes))

    @property
    def _is_interim(self) -> bool:
        return self.addressed.came == ReplyKind.PROGRESS

    def _try(self, sagas: SagaStore) -> bool:
        found = self._find(sagas)
        if found is None or found.record is None or (pending := self._pending_without(found.record)) is None:
            return False
        record, (text, rows) = found.record, pending
        change = Change(self.names, record.schema_version, record.data, text, cancelled=rows)
        sagas.update(record, change, Effects(self._entry(record, found.new_id)))
        return True

    def _find(self, sagas: SagaStore) -> Found | None:
        try:
            return sagas.find(Lookup(self.names, ID, self.addressed.instance_id))
        except StoreError as exc:
            if exc.retry is not Retry.NEVER:
                raise
            logger.warning("the timeout or request %s stays with its instance: %s", self.addressed.id, exc)
            return None

    def _pending_without(self, record: Record) -> tuple[str, tuple[str, ...]] | None:
        """Return the text of the pending map without it, and its rows of the outbox; ``None`` if the map lacks it."""
        try:
            pending = pending_of(record)
        except UnreadableState as exc:
            logger.warning("the timeout or request %s stays with its instance: %s", self.addressed.id, exc)
            return None
        return None if self._is_settled(pending) else self._without(pending)

    def _without(self, pending: Pending) -> tuple[str, tuple[str, ...]] | None:
        """Remove it as if it had been handled: after a deadline the instance still waits for a late answer."""
        if self._is_interim or pending.has_series(self.addressed.id):
            return None
        request = pending.requests.get(self.addressed.id)
        if not self._take(pending):
            return None
        if request is not None:
            pending.undo.note(request, self.addressed.came, self.outcome)
        pending.forget_oldest()
        return pending.text(), tuple(pending.cancelled)

    def _take(self, pending: Pending) -> bool:
        """Take it out of the map, as if it had been handled; return whether it was waited for.

        The message that ends the waiting of a deferred one stays: what is deferred then waits without an end.
        """
        if pending.has_wake(self.addressed.id):
            return False
        request = pending.requests.get(self.addressed.id)
        steps = (request.then, request.otherwise, request.progress) if request else ()
        return pending.take(self.addressed, steps)[0]

    def _entry(self, record: Record, attempt: str) -> Entry:
        """Return the journal's entry: its id is the dead letter's, so that a repeated cancellation writes nothing."""
        return Entry(
            step=self.dead_letter.task,
            message_id=derived_id(self.dead_letter.id, "cancellation"),
            attempt=attempt,
            outcome=Kind.IGNORED.value,
            saga=self.names[0],
            key=record.key,
            instance_id=record.id,
            version=record.version + 1,
            detail=to_json({"reason": "discarded", "dead_letter": self.dead_letter.id}).decode(),
        )
