"""One run of a message: find → policy → handler → commit. Nothing but the commit leaves a trace."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celery_sagas.core.context import MessageView, Sending, TypeOfFreeze
from celery_sagas.core.steps import Decision, StepDefinition
from celery_sagas.engine.alternates import alternates_of, difference
from celery_sagas.engine.commit import Commit, Limits
from celery_sagas.engine.conflicts import ORPHANED_AFTER, Conflicts
from celery_sagas.engine.dispatch import Dispatcher
from celery_sagas.engine.instance import Instance, begin, revive
from celery_sagas.engine.outcomes import Kind, Missing, Outcome
from celery_sagas.engine.session import Session
from celery_sagas.errors import KeyTaken, RevisionConflict, SagaAlreadyExists, SagaNotFound, StoreError, UnreadableState
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import ID, KEY, Entry, Found, Handling, Lookup, Record

logger = logging.getLogger("celery_sagas")


@dataclass(frozen=True, slots=True)
class Services:
    """What every run needs, open in this process."""

    backend: Backend
    dispatcher: Dispatcher
    freeze: TypeOfFreeze
    limits: Limits
    conflict_retries: int  #: runs after conflicts before the instance is reserved


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message to a step."""

    message_id: str
    bound: Mapping[str, Any]  #: the arguments by name, as they came
    session: Session
    call: Callable[..., Any]  #: calls a function with what comes first, and the arguments by name


@dataclass(slots=True)
class Run:
    """One run of one delivery; a conflict makes another one."""

    services: Services
    step: StepDefinition
    delivery: Delivery
    conflicts: Conflicts
    arguments: dict[str, Any] = field(init=False)
    lookup: Lookup = field(init=False)
    sending: Sending = field(init=False)
    commit: Commit = field(init=False)

    def execute(self) -> Outcome:
        """Run the message once.

        Raises:
            RevisionConflict: Another message of the instance committed first: make another run.
            AlreadyHandled: Another run of this message committed.
            SagaError: See the class; nothing was written.
            Exception: What the handler raised; nothing was written.
        """
        step, message_id = self.step, self.delivery.message_id
        self.arguments = step.arguments.validate(self.delivery.bound)
        address = step.rule.correlate(self.arguments, self.delivery.session.causation)
        self.lookup = Lookup(step.saga.names, address.property, address.text)
        found = self._find()
        if found.handled is not None:
            self._end_reservation(found.record)
            return self._duplicate(found.handled)
        self.sending = Sending(step.name, message_id, self.services.freeze)
        self.commit = Commit(step, self.sending, self.services.limits, self.services.dispatcher.owner, self.conflicts.holder)
        message = MessageView(message_id, step.name)
        decision = step.decide(found.record is not None)
        if decision is Decision.BEGIN:
            return self._handle(begin(step.saga, address, message, self.sending))
        if decision is Decision.CONTINUE and found.record is not None:
            return self._handle(self._revive(found.record, message))
        return self._without_handler(decision, found.record)

    def _duplicate(self, handled: Entry) -> Outcome:
        """Answer a message that was handled before: publish what its earlier run left behind.

        What follows the task (``link``, the next of a chain) may not have been sent yet: it belongs to the same instance.
        """
        if handled.instance_id:
            self.delivery.session.belongs_to(self.step.saga.name, handled.instance_id)
        self.services.dispatcher.dispatch_leftovers(Handling(self.step.names, self.delivery.message_id))
        return Outcome(
            Kind.DUPLICATE,
            self.step.saga.name,
            self.step.name,
            self.delivery.message_id,
            handled.key,
            handled.instance_id,
            handled.version,
        )

    def _find(self) -> Found:
        sagas, conflicts = self.services.backend.sagas, self.conflicts
        handling = Handling(self.step.names, self.delivery.message_id)
        found = sagas.find(self.lookup, handling)
        record = found.record
        if record is None or found.handled is not None or self.step.decide(exists=True) is not Decision.CONTINUE:
            return found  # nothing of the instance will be written
        if conflicts.reserving and record.reserved_by != conflicts.holder:
            if not sagas.reserve(record, conflicts.holder, conflicts.reservation_ms):
                raise RevisionConflict(record.saga, record.key, "reserved")
            return sagas.find(self.lookup, handling)
        if record.reserved_by not in ("", conflicts.holder):
            raise RevisionConflict(record.saga, record.key, "reserved")
        return found

    def _revive(self, record: Record, message: MessageView) -> Instance:
        try:
            return revive(self.step.saga, record, message, self.sending)
        except StoreError:
            self._end_reservation(record)
            raise

    def _handle(self, instance: Instance) -> Outcome:
        session = self.delivery.session
        inherited = dict(session.causation)
        session.belongs_to(self.step.saga.name, instance.id)
        committed = False
        try:
            with session.running(self.sending):
                result = self.delivery.call(self.step.function, instance.state, **self.arguments)
            outcome = self._commit(instance, result)
            committed = True
        finally:
            if not committed:
                session.causation = inherited
                self._end_reservation(instance.record)
        return self._dispatch(outcome)

    def _commit(self, instance: Instance, result: Any) -> Outcome:
        try:
            return self.commit.instance(self.services.backend.sagas, instance, result)
        except RevisionConflict as conflict:
            if conflict.reason == "unique" and self.conflicts.unique:
                self._refuse_taken_keys(instance)
            raise

    def _refuse_taken_keys(self, instance: Instance) -> None:
        """Raise ``KeyTaken`` if a key that could not be inserted twice belongs to another live instance."""
        saga = instance.saga
        added, _ = difference(instance.indexed, alternates_of(saga, instance.key, instance.state))
        for name, value in added:
            holder = self.services.backend.sagas.find(Lookup(saga.names, name, value)).record
            if holder is not None and holder.id != instance.id:
                raise KeyTaken(saga.name, name, value, holder.id)
            if holder is None and self.conflicts.unique >= ORPHANED_AFTER:
                raise UnreadableState(saga.name, instance.key, f"the store keeps {name}={value!r} for an instance that is gone")

    def _end_reservation(self, record: Record | None) -> None:
        if record is None or record.reserved_by != self.conflicts.holder:
            return
        try:
            self.services.backend.sagas.reserve(record, self.conflicts.holder, 0)
        except StoreError as exc:
            logger.warning(
                "%s %r stays reserved for at most %d ms: %s", record.saga, record.key, self.conflicts.reservation_ms, exc
            )

    def _without_handler(self, decision: Decision, record: Record | None) -> Outcome:
        if record is None:
            return self._dispatch(self._missing(decision))
        if decision is Decision.ALREADY_EXISTS:
            raise SagaAlreadyExists(self.step.saga.name, self._property, self.lookup.value, record.id)
        sagas = self.services.backend.sagas
        return self._dispatch(self.commit.without_instance(sagas, Kind.IGNORED, record.key, record.id, "exists"))

    def _missing(self, decision: Decision) -> Outcome:
        sagas, step = self.services.backend.sagas, self.step
        key = self.lookup.value if self.lookup.property == KEY else ""
        instance_id = self.lookup.value if self.lookup.property == ID else ""
        completed = bool(key) and self.services.backend.journal.outcome_of(step.saga.names, key) is not None
        if decision is Decision.NOT_FOUND:
            raise SagaNotFound(step.saga.name, self._property, self.lookup.value, completed)
        reason = "completed" if completed else "missing"
        if step.if_missing is None:
            return self.commit.without_instance(sagas, Kind.IGNORED, key, instance_id, reason)
        missing = Missing(step.saga.name, self._property, self.lookup.value, completed, self.sending)
        with self.delivery.session.running(self.sending):
            result = self.delivery.call(step.if_missing, missing, **self.arguments)
        return self.commit.without_instance(sagas, Kind.MISSING, key, instance_id, reason, result)

    def _dispatch(self, outcome: Outcome) -> Outcome:
        self.services.dispatcher.dispatch(self.commit.outgoing, self.commit.began)
        return outcome

    @property
    def _property(self) -> str:
        """What the message was correlated by, as the user wrote it."""
        return {KEY: ", ".join(self.step.saga.correlate_by), ID: "id"}.get(self.lookup.property, self.lookup.property)
